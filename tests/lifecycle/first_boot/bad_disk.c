/* Loaded before the C library: at the n-th change below a folder, the process dies, or the disk fails from then on.
 *
 * A change is a file opened for writing, a write, a truncation, an fsync, a rename, a link, a removal, a folder made.
 * bad_disk(folder, at, error, log): error 0 kills; at 0 only counts; log is a descriptor that gets a line for each.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[4096];
static long at, count;
static int error, log_fd = -1;

void bad_disk(const char *path, long n, int code, int fd)
{
	strncpy(folder, path, sizeof(folder) - 1);
	at = n;
	count = 0;
	error = code;
	log_fd = fd;
}

static int below(const char *path)
{
	return folder[0] && path && strncmp(path, folder, strlen(folder)) == 0;
}

static const char *path_of(int fd, char *buffer)
{
	char name[64];
	ssize_t length;
	snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
	length = readlink(name, buffer, 4095);
	if (length < 0)
		return NULL;
	buffer[length] = 0;
	return buffer;
}

/* Whether a change must fail. */
static int strikes(const char *what, const char *path)
{
	long n;
	if (!below(path))
		return 0;
	n = __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST);
	if (log_fd >= 0)
		dprintf(log_fd, "%ld %s %s\n", n, what, path + strlen(folder));
	if (at == 0 || n < at)
		return 0;
	if (error == 0) {
		kill(getpid(), SIGKILL);
		pause();
	}
	/* A full disk still removes and syncs; one that is read-only takes nothing; one that is broken fails at all. */
	if (error == ENOSPC && (strcmp(what, "unlink") == 0 || strcmp(what, "fsync") == 0 || strcmp(what, "rename") == 0))
		return 0;
	if (error == EROFS && (strcmp(what, "write") == 0 || strcmp(what, "fsync") == 0))
		return 0; /* of files that were open before */
	errno = error;
	return 1;
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define WRITES(flags) ((flags) & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC))
#define MODE(flags) mode_t mode = 0; if ((flags) & (O_CREAT | O_TMPFILE)) { va_list l; va_start(l, flags); mode = va_arg(l, mode_t); va_end(l); }

int open(const char *p, int flags, ...) { MODE(flags) REAL(open); return WRITES(flags) && strikes("open", p) ? -1 : real(p, flags, mode); }
int open64(const char *p, int flags, ...) { MODE(flags) REAL(open64); return WRITES(flags) && strikes("open", p) ? -1 : real(p, flags, mode); }
int openat(int d, const char *p, int flags, ...) { MODE(flags) REAL(openat); return WRITES(flags) && strikes("open", p) ? -1 : real(d, p, flags, mode); }
int openat64(int d, const char *p, int flags, ...) { MODE(flags) REAL(openat64); return WRITES(flags) && strikes("open", p) ? -1 : real(d, p, flags, mode); }
int mkdir(const char *p, mode_t m) { REAL(mkdir); return strikes("mkdir", p) ? -1 : real(p, m); }
int rename(const char *a, const char *b) { REAL(rename); return strikes("rename", b) ? -1 : real(a, b); }
int unlink(const char *p) { REAL(unlink); return strikes("unlink", p) ? -1 : real(p); }
int symlink(const char *a, const char *b) { REAL(symlink); return strikes("symlink", b) ? -1 : real(a, b); }

#define BY_FD(fd, what) char b_[4096]; int saved_ = errno, is_ = folder[0] && strikes(what, path_of(fd, b_)); if (is_) return -1; errno = saved_

ssize_t write(int fd, const void *p, size_t n) { REAL(write); if (fd > 2 && fd != log_fd) { BY_FD(fd, "write"); } return real(fd, p, n); }
ssize_t writev(int fd, const struct iovec *v, int n) { REAL(writev); BY_FD(fd, "write"); return real(fd, v, n); }
ssize_t pwrite64(int fd, const void *p, size_t n, off64_t o) { REAL(pwrite64); BY_FD(fd, "write"); return real(fd, p, n, o); }
int ftruncate64(int fd, off64_t n) { REAL(ftruncate64); BY_FD(fd, "write"); return real(fd, n); }
int fsync(int fd) { REAL(fsync); BY_FD(fd, "fsync"); return real(fd); }
