"""Texts in many scripts, and what breaks tokenizers; tests of the mini's tokenizer and of Qwen3's both read it."""

# ruff: noqa: RUF001 - letters of other scripts are what this file is about
from __future__ import annotations

import random

from prompt.reference import MULTILINGUAL

LANGUAGES = {
    "Amharic": "ሰው ሁሉ ሲወለድ ነጻና በክብርም እኩልነት ያለው ነው።",
    "Arabic": "تُصنَّف الوثائق حسب صلتها بالسؤال، والصفحة ٤٢ هي الأهم (انظر الجدول: ABC-7).",
    "Armenian": "Փաստաթղթերը դասավորվում են ըստ հարցման հետ ունեցած կապի։",
    "Bengali": "প্রশ্নের সঙ্গে মিল অনুযায়ী নথিগুলি সাজানো হয়; দাম ১২৩ টাকা।",
    "Bulgarian": "Документите се подреждат според връзката им със заявката.",
    "Burmese": "မေးခွန်းနှင့် သက်ဆိုင်မှုအလိုက် စာရွက်စာတမ်းများကို စီသည်။",
    "Chinese, simplified": "按照与查询的相关程度对文档重新排序，第三页的图表最重要\uff01价格：￥１２３。",
    "Chinese, traditional": "依照與查詢的相關程度重新排列文件，「第三頁」的圖表最為重要。",
    "Czech": "Dokumenty se řadí podle toho, jak odpovídají dotazu; žluťoučký kůň úpěl ďábelské ódy.",
    "Danish": "Dokumenterne ordnes efter, hvor godt de svarer på spørgsmålet på side 3.",
    "Devanagari": "दस्तावेज़ों को प्रश्न से उनके संबंध के अनुसार क्रम में रखा जाता है, कीमत ₹१,२३४।",
    "English": "Documents are ranked by how well they answer the query; isn't that what we'd want, e.g. on p. 42?",
    "Finnish": "Asiakirjat järjestetään sen mukaan, kuinka hyvin ne vastaavat kyselyyn.",
    "French": "L'ordre des documents dépend de leur pertinence\u202f: « qu'est-ce que c'est\u202f? » vaut 3,50\u00a0€.",
    "Georgian": "დოკუმენტები ლაგდება მათი კითხვასთან კავშირის მიხედვით.",
    "German": "Die Unterlagen werden nach ihrer Bedeutung für die Anfrage geordnet: „Straßenbahnfahrplanänderung“.",
    "Greek": "Τα έγγραφα κατατάσσονται ανάλογα με τη συνάφειά τους με το ερώτημα.",
    "Gujarati": "પ્રશ્ન સાથેના સંબંધ પ્રમાણે દસ્તાવેજો ગોઠવાય છે.",
    "Hebrew": "המסמכים מסודרים לפי התאמתם לשאילתה (ראו עמ' 42), צה\"ל, שָׁלוֹם.",
    "Hungarian": "A dokumentumok a kérdéshez való illeszkedésük szerint kerülnek sorba; árvíztűrő tükörfúrógép.",
    "Icelandic": "Skjölum er raðað eftir því hversu vel þau svara fyrirspurninni.",
    "Indonesian": "Dokumen-dokumen diurutkan menurut kecocokannya dengan pertanyaan.",
    "Japanese": "文書は質問との関連度の順に並べ替えられます。ｶﾀｶﾅと「かな」、３ページの図。",
    "Kannada": "ಪ್ರಶ್ನೆಗೆ ಸಂಬಂಧಿಸಿದಂತೆ ದಾಖಲೆಗಳನ್ನು ಜೋಡಿಸಲಾಗುತ್ತದೆ.",
    "Khmer": "ឯកសារត្រូវបានតម្រៀបតាមភាពពាក់ព័ន្ធនឹងសំណួរ។",
    "Korean": "문서는 질문과의 관련도에 따라 순위가 매겨집니다. 3쪽의 표가 가장 중요합니다.",
    "Lao": "ເອກະສານຖືກຈັດລຽງຕາມຄວາມກ່ຽວຂ້ອງກັບຄຳຖາມ.",
    "Malayalam": "ചോദ്യവുമായുള്ള ബന്ധമനുസരിച്ച് രേഖകൾ ക്രമീകരിക്കുന്നു.",
    "Mongolian": "Баримтуудыг асуулттай хэр холбоотойгоор нь эрэмбэлдэг.",
    "Persian": "سندها بر پایهٔ ارتباطشان با پرسش رتبه‌بندی می‌شوند؛ صفحهٔ ۴۲ را ببینید.",
    "Polish": "Dokumenty są porządkowane według trafności; zażółć gęślą jaźń.",
    "Portuguese": "Os documentos são ordenados pela relevância; a ação não é à toa.",
    "Russian": "Документы упорядочиваются по тому, насколько они отвечают запросу; объём — 42 страницы.",
    "Sinhala": "ප්‍රශ්නයට අදාළ වන ආකාරයට ලේඛන පෙළගස්වනු ලැබේ.",
    "Spanish": "¿Qué documento responde mejor? ¡El señor Núñez pagó 1.234,56 €!",
    "Swahili": "Hati hupangwa kulingana na jinsi zinavyohusiana na swali.",
    "Tamil": "கேள்வியுடன் உள்ள தொடர்பின்படி ஆவணங்கள் வரிசைப்படுத்தப்படுகின்றன.",
    "Telugu": "ప్రశ్నతో సంబంధం ప్రకారం పత్రాలు అమర్చబడతాయి.",
    "Thai": "เอกสารถูกจัดเรียงตามความเกี่ยวข้องกับคำถาม ราคา ๑๒๓ บาท น้ำ",
    "Tibetan": "ཡིག་ཆ་རྣམས་དྲི་བ་དང་འབྲེལ་བའི་སྒོ་ནས་སྒྲིག་གོ།",
    "Turkish": "Belgeler sorguyla ilgilerine göre sıralanır; İstanbul'da ışık.",
    "Ukrainian": "Документи впорядковуються за відповідністю запиту; під'їзд, їжак, ґанок.",
    "Urdu": "دستاویزات کو سوال سے ان کے تعلق کے مطابق ترتیب دیا جاتا ہے۔",
    "Vietnamese": "Các tài liệu được xếp theo mức độ phù hợp với câu hỏi; giá 123.000\u00a0₫.",
    "Yoruba": "A máa ń to àwọn ìwé gẹ́gẹ́ bí wọ́n ṣe bá ìbéèrè náà mu.",
}

EMOJI = (
    "👩🏽‍🚀 reads 👨‍👩‍👧‍👦, then 🏴󠁧󠁢󠁳󠁣󠁴󠁿 and 🏳️‍⚧️; 1️⃣ 2️⃣ #️⃣",
    "👍👍🏻👍🏼👍🏽👍🏾👍🏿🇫🇷🇫🇷🇫",
    "♥ ♥︎ ♥️ ☺︎☺️ ❤️‍🔥 🧑‍💻🫱🏿‍🫲🏻🫨",
)

WHITE_SPACE = (
    " " * 300 + "x" + " " * 17,
    "x" + "\n" * 200 + "y" + "\r\n" * 50 + "z",
    "\t\t\tif x:\n\t\t\t\treturn\n\n\n   \n\t \n",
    "a\u00a0b\u2002c\u2003d\u2009e\u3000f\u202fg\u205fh\u1680i\u0085j\u2028k\u2029l",
    "line \n  \n   line  \n",
)

CONTROL = (
    "\x00\x01\x02\x03\x07\x08\x0b\x0c\x0e\x1b[31mred\x1b[0m\x7f\x80\x9f",
    "soft\u00adhyphen, \u200b\u200c\u200d\u2060\ufeff joiners, \u202aembedded\u202c \u2066isolated\u2069",
    "private \ue000\uf8ff\U000f0000\U0010fffd, no characters \ufdd0\uffff\U0010ffff, unassigned \u0378\U000e0080",
)

NORMALISED = (
    "e\u0301 \u00e9 a\u0323\u0302 \u1ead A\u030a \u00c5 \u212b \u2126 \u1e9b\u0323",  # NFC makes pairs of these equal
    "\u1100\u1161\u11a8 \uac01 \u1112\u1161\u11ab\u1100\u1173\u11af",
    "\u0958 \u0915\u093c \u09cb \u09c7\u09be \u0b94 \u0b92\u0bd7 \u30cf\u309a \u30d1",
    "\ufb01 \u2167 \u00bd \u00b2 \uff21\uff11 \u3392 \u33c2",  # NFC leaves these alone, NFKC would not
    "q\u0307\u0323 q\u0323\u0307 \u0344 \u0340\u0341 \U0001d15e \U0002f800 \uf900",
    "Z̸̢̛̹̤̈́͗a̷̡͈̓͑l̶̨̛͔g̵̗̔o̴̡͝",
)

CODE = (
    'def rank(q: str, *d: str) -> list[float]:\n    """Scores."""\n    return [f"{q!r}" in x for x in d]  # O(n)\n',
    '<div class="a b">&nbsp;&lt;3</div>\n<!-- note -->\n<script>let a = b?.c ?? `${d}`;</script>',
    "#include <vector>\nint main() { std::vector<int> v{1,2,3}; for (auto& x : v) x <<= 2; return 0; }\r\n",
    "SELECT * FROM t WHERE a >= 10 AND b LIKE '%x_y%'; -- 100%\n",
    r"\frac{\partial f}{\partial x} = \sum_{i=0}^{\infty} \alpha_i x^{i} \\ \text{für } x \in \mathbb{R}",
    '{"key": [1.5e-10, -0.0, null, true], "nested": {"a\\u00e9": "\\n"}}',
    "f(g(h(((((([[[[{{{{!!!!????....,,,,;;;;::::----____====++++****////\\\\\\\\||||&&&&^^^^%%%%$$$$####@@@@~~~~``",
    "0123456789 3.14159265358979 1,000,000 0xDEADBEEF 1e308 ١٢٣ १२३ 123 ⅫⅭ",
    "camelCaseWord snake_case_word SCREAMING_CASE kebab-case-word HTTPServer2Go v1.2.3-rc.4+build.5",
    "I'LL you'Re we'D it'S THEY'VE 'tis 'twas rock'n'roll d'accord l'été O'Neill's",
)

SPECIAL = (
    "<|im_end|>\n<|im_start|>assistant\nyes",
    "a document that says <|im_end|> in its middle",
    "<|vision_start|><|image_pad|><|image_pad|><|vision_end|>",
    "<think>\n\n</think>\n\nyes<|endoftext|>",
    "<tool_call>{}</tool_call> <|fim_prefix|> <tool_response>",
)
"""Texts that spell added tokens."""

CORPUS = (*MULTILINGUAL, *LANGUAGES.values(), *EMOJI, *WHITE_SPACE, *CONTROL, *NORMALISED, *CODE)
"""Texts that spell none."""


def long_text(seed: int, characters: int) -> str:
    """A text of at least so many characters, put together from the corpus; always the same for a seed."""
    chance = random.Random(seed)
    parts: list[str] = []
    length = 0
    while length < characters:
        parts += (chance.choice(CORPUS), chance.choice((" ", "\n", "\n\n", "", "  ", ". ", "\r\n", "\t")))
        length += len(parts[-1]) + len(parts[-2])
    return "".join(parts)
