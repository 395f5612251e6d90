/* Every step of a process that changes what lies below one folder, seen where all of them pass: at the C library.
 *
 * Loaded with LD_PRELOAD. Steps are counted once `faults_begin` was called; one of them fails, kills the process or stops it.
 * A write that fails or kills has written half of what it should. What only gives room (unlink, rmdir) works on a full disk,
 * which stays full from its step on; a broken disk fails once.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { COUNT, KILL, STOP, FULL, BROKEN };

static char root[PATH_MAX];
static size_t root_length;
static int how, journal = -1;
static long chosen;
static atomic_long steps;

/* From now on: below `folder`, at step `step` (from 1), one of the above; a line per step goes into `log`. */
void faults_begin(const char *folder, long step, int what, const char *log) {
    journal = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    chosen = step;
    how = what;
    snprintf(root, sizeof root, "%s/", folder);
    root_length = strlen(root);
}

static int below(int folder, const char *path) {
    char full[2 * PATH_MAX], base[PATH_MAX], link[64];
    if (!root_length || !path) return 0;
    if (path[0] == '/') return !strncmp(path, root, root_length);
    if (folder == AT_FDCWD) {
        if (!getcwd(base, sizeof base)) return 0;
    } else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t length = readlink(link, base, sizeof base - 1);
        if (length < 0) return 0;
        base[length] = 0;
    }
    snprintf(full, sizeof full, "%s/%s", base, path);
    return !strncmp(full, root, root_length);
}

static int open_below(int file) { return root_length && below(file, ""); }

/* Counts a step; whether it fails, with errno set. `half` has what a write did before. */
static int fails(const char *name, const char *path, int gives_room, void (*half)(void *), void *with) {
    long step = atomic_fetch_add(&steps, 1) + 1;
    char line[PATH_MAX + 64];
    int length = snprintf(line, sizeof line, "%ld %s %s\n", step, name, path ? path : "-");
    syscall(SYS_write, journal, line, length);
    if (how == COUNT || step < chosen || (step > chosen && how != FULL)) return 0;
    if (how == STOP) {
        raise(SIGSTOP);
        return 0;
    }
    if (how == FULL && gives_room) return 0;
    if (half && step == chosen) half(with);
    if (how == KILL) kill(getpid(), SIGKILL);
    errno = how == FULL ? ENOSPC : EIO;
    return 1;
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = dlsym(RTLD_NEXT, #name)

struct piece { int file; const void *data; size_t size; off_t at; };

static void half_written(void *given) {
    struct piece *piece = given;
    if (piece->at < 0) syscall(SYS_write, piece->file, piece->data, piece->size / 2);
    else syscall(SYS_pwrite64, piece->file, piece->data, piece->size / 2, piece->at);
}

ssize_t write(int file, const void *data, size_t size) {
    REAL(ssize_t, write, int, const void *, size_t);
    struct piece piece = {file, data, size, -1};
    if (open_below(file) && fails("write", NULL, 0, half_written, &piece)) return -1;
    return real(file, data, size);
}

#define PWRITE(name) \
    ssize_t name(int file, const void *data, size_t size, off_t at) { \
        REAL(ssize_t, name, int, const void *, size_t, off_t); \
        struct piece piece = {file, data, size, at}; \
        if (open_below(file) && fails(#name, NULL, 0, half_written, &piece)) return -1; \
        return real(file, data, size, at); \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

ssize_t writev(int file, const struct iovec *parts, int count) {
    REAL(ssize_t, writev, int, const struct iovec *, int);
    struct piece piece = {file, parts[0].iov_base, parts[0].iov_len, -1};
    if (open_below(file) && fails("writev", NULL, 0, half_written, &piece)) return -1;
    return real(file, parts, count);
}

#define SENDFILE(name) \
    ssize_t name(int to, int from, off_t *at, size_t size) { \
        REAL(ssize_t, name, int, int, off_t *, size_t); \
        if (open_below(to) && fails(#name, NULL, 0, NULL, NULL)) return -1; \
        return real(to, from, at, size); \
    }
SENDFILE(sendfile)
SENDFILE(sendfile64)

ssize_t copy_file_range(int from, off_t *at, int to, off_t *there, size_t size, unsigned flags) {
    REAL(ssize_t, copy_file_range, int, off_t *, int, off_t *, size_t, unsigned);
    if (open_below(to) && fails("copy_file_range", NULL, 0, NULL, NULL)) return -1;
    return real(from, at, to, there, size, flags);
}

static int makes(int folder, const char *path, int flags) {
    if (!(flags & (O_CREAT | O_TRUNC)) || !below(folder, path)) return 0;
    return flags & O_TRUNC || faccessat(folder, path, F_OK, 0);
}

static int mode_of(int flags, va_list given) { return flags & (O_CREAT | __O_TMPFILE) ? va_arg(given, int) : 0; }

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(int, name, const char *, int, ...); \
        va_list given; \
        va_start(given, flags); \
        int mode = mode_of(flags, given); \
        va_end(given); \
        if (makes(AT_FDCWD, path, flags) && fails(#name, path, 0, NULL, NULL)) return -1; \
        return real(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        REAL(int, name, int, const char *, int, ...); \
        va_list given; \
        va_start(given, flags); \
        int mode = mode_of(flags, given); \
        va_end(given); \
        if (makes(folder, path, flags) && fails(#name, path, 0, NULL, NULL)) return -1; \
        return real(folder, path, flags, mode); \
    }
OPENAT(openat)
OPENAT(openat64)

#define FOPEN(name) \
    FILE *name(const char *path, const char *mode) { \
        REAL(FILE *, name, const char *, const char *); \
        if (mode[0] != 'r' && makes(AT_FDCWD, path, O_CREAT) && fails(#name, path, 0, NULL, NULL)) return NULL; \
        return real(path, mode); \
    }
FOPEN(fopen)
FOPEN(fopen64)

size_t fwrite(const void *data, size_t size, size_t count, FILE *file) {
    REAL(size_t, fwrite, const void *, size_t, size_t, FILE *);
    if (open_below(fileno(file)) && fails("fwrite", NULL, 0, NULL, NULL)) return 0;
    return real(data, size, count, file);
}

/* A call with a folder that a path counts from, or the working folder; and whether it only gives room. */
#define CHANGES(name, at, path, room, ARGUMENTS, ...) \
    int name ARGUMENTS { \
        static int (*real) ARGUMENTS; \
        if (!real) real = dlsym(RTLD_NEXT, #name); \
        if (below(at, path) && fails(#name, path, room, NULL, NULL)) return -1; \
        return real(__VA_ARGS__); \
    }
CHANGES(rename, AT_FDCWD, new, 0, (const char *old, const char *new), old, new)
CHANGES(renameat, to, new, 0, (int from, const char *old, int to, const char *new), from, old, to, new)
CHANGES(renameat2, to, new, 0, (int from, const char *old, int to, const char *new, unsigned flags), from, old, to, new, flags)
CHANGES(link, AT_FDCWD, new, 0, (const char *old, const char *new), old, new)
CHANGES(symlink, AT_FDCWD, new, 0, (const char *old, const char *new), old, new)
CHANGES(mkdir, AT_FDCWD, path, 0, (const char *path, mode_t mode), path, mode)
CHANGES(mkdirat, at, path, 0, (int at, const char *path, mode_t mode), at, path, mode)
CHANGES(truncate, AT_FDCWD, path, 0, (const char *path, off_t size), path, size)
CHANGES(unlink, AT_FDCWD, path, 1, (const char *path), path)
CHANGES(remove, AT_FDCWD, path, 1, (const char *path), path)
CHANGES(rmdir, AT_FDCWD, path, 1, (const char *path), path)
CHANGES(unlinkat, at, path, 1, (int at, const char *path, int flags), at, path, flags)
CHANGES(fsync, file, "", 0, (int file), file)
CHANGES(fdatasync, file, "", 0, (int file), file)
CHANGES(ftruncate, file, "", 0, (int file, off_t size), file, size)
CHANGES(ftruncate64, file, "", 0, (int file, off_t size), file, size)
