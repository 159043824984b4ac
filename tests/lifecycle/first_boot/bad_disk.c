/* Loaded before the C library: at the n-th change below a folder the process dies, or the disk fails.
 *
 * A change is a file opened for writing, a write, a truncation, an fsync, a rename, a link, a removal, a folder made.
 * bad_disk(folder, at, last, error, log): changes from `at` to `last` fail with that error. Error 0 kills; -1 does, too,
 * and files have lost what was written into them and not synced. At 0 it only counts; log is a descriptor that gets a
 * line for each change.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[4096];
static long at, last, count;
static int error, log_fd = -1;

void bad_disk(const char *path, long first_failing, long last_failing, int code, int fd)
{
	strncpy(folder, path, sizeof(folder) - 1);
	at = first_failing;
	last = last_failing;
	count = 0;
	error = code;
	log_fd = fd;
}

static const char *path_of(int fd, char *buffer)
{
	char name[64];
	ssize_t length;
	snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
	length = readlink(name, buffer, 4095);
	buffer[length < 0 ? 0 : length] = 0;
	return buffer;
}

#define MOST_UNSYNCED 256
/* Files that were written into, each by a descriptor of the shim's own. */
static int unsynced[MOST_UNSYNCED], unsynced_count;

static int is_file_of(int fd, const struct stat *file)
{
	struct stat other;
	return fstat(fd, &other) == 0 && other.st_dev == file->st_dev && other.st_ino == file->st_ino;
}

/* Takes note that a file was written into (1), or that it is on disk (0). */
static void note(int fd, int written)
{
	char name[64];
	struct stat file;
	int i;
	if (error != -1 || fstat(fd, &file) != 0 || !S_ISREG(file.st_mode))
		return;
	for (i = 0; i < unsynced_count; i++)
		if (is_file_of(unsynced[i], &file))
			break;
	if (written && i == unsynced_count) {
		static int (*real)(const char *, int, ...);
		if (!real)
			real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
		snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
		if (i == MOST_UNSYNCED)
			abort();
		unsynced[unsynced_count++] = real(name, O_WRONLY | O_CLOEXEC);
	} else if (!written && i < unsynced_count) {
		close(unsynced[i]);
		unsynced[i] = unsynced[--unsynced_count];
	}
}

static void lose_what_is_unsynced(void)
{
	static int (*real)(int, off64_t);
	if (!real)
		real = (int (*)(int, off64_t))dlsym(RTLD_NEXT, "ftruncate64");
	while (unsynced_count > 0)
		if (real(unsynced[--unsynced_count], 0) != 0)
			abort();
}

/* Whether a change must fail. */
static int strikes(const char *what, const char *path)
{
	long n;
	if (!folder[0] || !path || strncmp(path, folder, strlen(folder)) != 0)
		return 0;
	n = __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST);
	if (log_fd >= 0)
		dprintf(log_fd, "%ld %s %s\n", n, what, path + strlen(folder));
	if (at == 0 || n < at || n > last)
		return 0;
	if (error <= 0) {
		lose_what_is_unsynced();
		kill(getpid(), SIGKILL);
		pause();
	}
	/* What is full can still be removed from. One that the kernel has made read-only, or that is broken, takes nothing,
	 * not even from files that are open for writing. */
	if (error == ENOSPC && strcmp(what, "unlink") == 0)
		return 0;
	errno = error;
	return 1;
}

/* The same for a path below a folder that is open, and for a file that is. */
static int strikes_at(const char *what, int dir, const char *path)
{
	char whole[8192];
	if (!folder[0] || !path || path[0] == '/' || dir == AT_FDCWD)
		return strikes(what, path);
	path_of(dir, whole);
	snprintf(whole + strlen(whole), sizeof(whole) - strlen(whole), "/%s", path);
	return strikes(what, whole);
}

static int strikes_on(const char *what, int fd)
{
	char path[4096];
	int saved = errno;
	if (!folder[0] || fd == log_fd)
		return 0;
	if (strikes(what, path_of(fd, path)))
		return 1;
	if (strncmp(path, folder, strlen(folder)) == 0)
		note(fd, strcmp(what, "fsync") != 0);
	errno = saved;
	return 0;
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define WRITES(flags) ((flags) & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC))
#define MODE(flags) mode_t mode = 0; if ((flags) & (O_CREAT | O_TMPFILE)) { va_list l; va_start(l, flags); mode = va_arg(l, mode_t); va_end(l); }
#define UNLESS(fails, type, name, ...) { REAL(name); return (fails) ? (type)-1 : real(__VA_ARGS__); }

int open(const char *p, int f, ...) { MODE(f) UNLESS(WRITES(f) && strikes("open", p), int, open, p, f, mode) }
int open64(const char *p, int f, ...) { MODE(f) UNLESS(WRITES(f) && strikes("open", p), int, open64, p, f, mode) }
int openat(int d, const char *p, int f, ...) { MODE(f) UNLESS(WRITES(f) && strikes_at("open", d, p), int, openat, d, p, f, mode) }
int openat64(int d, const char *p, int f, ...) { MODE(f) UNLESS(WRITES(f) && strikes_at("open", d, p), int, openat64, d, p, f, mode) }
int mkdir(const char *p, mode_t m) UNLESS(strikes("mkdir", p), int, mkdir, p, m)
int mkdirat(int d, const char *p, mode_t m) UNLESS(strikes_at("mkdir", d, p), int, mkdirat, d, p, m)
int rename(const char *a, const char *b) UNLESS(strikes("rename", b), int, rename, a, b)
int renameat(int c, const char *a, int d, const char *b) UNLESS(strikes_at("rename", d, b), int, renameat, c, a, d, b)
int unlink(const char *p) UNLESS(strikes("unlink", p), int, unlink, p)
int unlinkat(int d, const char *p, int f) UNLESS(strikes_at("unlink", d, p), int, unlinkat, d, p, f)
int rmdir(const char *p) UNLESS(strikes("unlink", p), int, rmdir, p)
int symlink(const char *a, const char *b) UNLESS(strikes("symlink", b), int, symlink, a, b)
int link(const char *a, const char *b) UNLESS(strikes("link", b), int, link, a, b)
int truncate64(const char *p, off64_t n) UNLESS(strikes("write", p), int, truncate64, p, n)
int utimensat(int d, const char *p, const struct timespec t[2], int f) UNLESS(strikes_at("utime", d, p), int, utimensat, d, p, t, f)
int chmod(const char *p, mode_t m) UNLESS(strikes("chmod", p), int, chmod, p, m)

ssize_t write(int fd, const void *p, size_t n) UNLESS(fd > 2 && strikes_on("write", fd), ssize_t, write, fd, p, n)
ssize_t writev(int fd, const struct iovec *v, int n) UNLESS(strikes_on("write", fd), ssize_t, writev, fd, v, n)
ssize_t pwrite64(int fd, const void *p, size_t n, off64_t o) UNLESS(strikes_on("write", fd), ssize_t, pwrite64, fd, p, n, o)
ssize_t sendfile64(int out, int in, off64_t *o, size_t n) UNLESS(strikes_on("write", out), ssize_t, sendfile64, out, in, o, n)
ssize_t copy_file_range(int in, off64_t *i, int out, off64_t *o, size_t n, unsigned f) UNLESS(strikes_on("write", out), ssize_t, copy_file_range, in, i, out, o, n, f)
int ftruncate64(int fd, off64_t n) UNLESS(strikes_on("write", fd), int, ftruncate64, fd, n)
int fsync(int fd) UNLESS(strikes_on("fsync", fd), int, fsync, fd)
int fdatasync(int fd) UNLESS(strikes_on("fsync", fd), int, fdatasync, fd)
