// Step 2: renders SVG to raw 128 x 128 RGB, centred on white.
//
//   node recipe/render.mjs DIR [part] [parts]
//
// Writes DIR/data/pixels.PART.bin and DIR/data/pixels.PART.txt (the picture ids in order). A picture that cannot
// be rendered is left out. Some abort the renderer's whole process, so a child does the work and is started again
// behind the picture that it died of. DIR/npm holds the renderer.
import { spawnSync } from "node:child_process";
import { createRequire } from "node:module";
import { appendFileSync, closeSync, createReadStream, openSync, readFileSync, rmSync, writeFileSync, writeSync } from "node:fs";
import { resolve } from "node:path";
import { createInterface } from "node:readline";

const [root, part = "0", parts = "1"] = process.argv.slice(2);
const SIDE = 128;
const SMALLEST = 8;
const { Resvg } = createRequire(resolve(root, "npm", "package.json"))("@resvg/resvg-js");

function render(svg) {
  const options = { background: "white", font: { loadSystemFonts: false } };
  let picture = new Resvg(svg, { ...options, fitTo: { mode: "width", value: SIDE } });
  if (picture.height > picture.width) {
    picture = new Resvg(svg, { ...options, fitTo: { mode: "height", value: SIDE } });
  }
  const { width, height, pixels } = picture.render();
  if (Math.max(width, height) > SIDE || Math.min(width, height) < SMALLEST) {
    throw new Error(`rendered to ${width} x ${height}`);
  }
  const left = (SIDE - width) >> 1;
  const top = (SIDE - height) >> 1;
  const canvas = Buffer.alloc(SIDE * SIDE * 3, 255);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const from = (y * width + x) * 4;
      const to = ((y + top) * SIDE + x + left) * 3;
      canvas[to] = pixels[from];
      canvas[to + 1] = pixels[from + 1];
      canvas[to + 2] = pixels[from + 2];
    }
  }
  return canvas;
}

async function work(begin) {
  const out = openSync(`${files}.bin`, "a");
  let line = 0;
  for await (const text of createInterface({ input: createReadStream(`${root}/data/svg.jsonl`) })) {
    const at = line++;
    if (at < begin || at % Number(parts) !== Number(part)) continue;
    writeFileSync(`${files}.at`, String(at));
    const { id, svg } = JSON.parse(text);
    try {
      writeSync(out, render(svg));
      appendFileSync(`${files}.txt`, `${id}\n`);
    } catch {
      // Left out: an SVG that the renderer does not understand, or a picture of no use at this size.
    }
  }
  closeSync(out);
}

const files = `${root}/data/pixels.${part}`;
if (process.env.RENDER_FROM !== undefined) {
  await work(Number(process.env.RENDER_FROM));
} else {
  for (const ending of ["bin", "txt", "at"]) rmSync(`${files}.${ending}`, { force: true });
  for (let from = 0; ; from = Number(readFileSync(`${files}.at`, "utf8")) + 1) {
    const { status } = spawnSync(process.execPath, [...process.argv.slice(1)], {
      env: { ...process.env, RENDER_FROM: String(from) },
      stdio: ["ignore", "inherit", "ignore"],
    });
    if (status === 0) break;
    console.log(`part ${part}: the renderer died of line ${readFileSync(`${files}.at`, "utf8")}`);
  }
}
