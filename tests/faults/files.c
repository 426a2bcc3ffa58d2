/* A library to preload, which makes the n-th operation on files below a folder fail, in this process:
 *
 *   faults_arm(folder, n, kind, error)   from now on count operations; the n-th (from 1; 0: none) fails
 *   faults_disarm()                      how many there were
 *   faults_names()                       their names, one letter each: see OPERATIONS in run.py
 *
 * Kinds: 0, the operation is not done and returns `error`; 1, a read or write does half (others are done as usual);
 * 2, the process is killed before the operation; 3, after it.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FAIL, HALF, KILL_BEFORE, KILL_AFTER };
enum { MOST_HANDLES = 1 << 16, MOST_NAMES = 1 << 16 };

static char folder[4096];
static size_t folder_length;
static atomic_long counted, at;
static int kind, error;
static atomic_bool armed;
static atomic_bool below[MOST_HANDLES]; /* handles of files in the folder */
static char names[MOST_NAMES];

void faults_arm(const char* path, long n, int how, int number) {
  strncpy(folder, path, sizeof folder - 1);
  folder_length = strlen(folder);
  counted = 0;
  at = n;
  kind = how;
  error = number;
  memset(names, 0, sizeof names);
  armed = 1;
}
long faults_disarm(void) {
  armed = 0;
  return counted;
}
const char* faults_names(void) { return names; }

static int of_path(const char* path) {
  return armed && path && !strncmp(path, folder, folder_length) &&
         (path[folder_length] == '/' || path[folder_length] == 0);
}
static int of_handle(int handle) { return armed && handle >= 0 && handle < MOST_HANDLES && below[handle]; }
static int of(int handle, const char* path) { return path && path[0] == '/' ? of_path(path) : of_handle(handle); }
static void note(int handle, int is_below) {
  if (handle >= 0 && handle < MOST_HANDLES) below[handle] = is_below;
}

/* Counts an operation; -1: it is done as usual, else the kind of its failure. */
static int count(char name) {
  const long n = ++counted;
  if (n <= MOST_NAMES - 1) names[n - 1] = name;
  if (n != at) return -1;
  if (kind == KILL_BEFORE) kill(getpid(), SIGKILL);
  return kind;
}
static void after(int how) {
  if (how == KILL_AFTER) kill(getpid(), SIGKILL);
}

#define REAL(result, name, ...)                        \
  static result (*real)(__VA_ARGS__);                  \
  if (!real) real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

/* An operation that returns -1 with errno set. */
#define PLAIN(letter, concerned, call)  \
  if (!(concerned)) return call;        \
  const int how = count(letter);        \
  if (how == FAIL) return errno = error, -1; \
  const __typeof__(call) result = call; \
  const int saved = errno;              \
  after(how);                           \
  errno = saved;                        \
  return result

static int opened(int handle, int is_below) {
  note(handle, is_below);
  return handle;
}

#define OPEN(name)                                     \
  int name(const char* path, int flags, ...) {         \
    va_list more;                                      \
    va_start(more, flags);                             \
    const mode_t mode = va_arg(more, mode_t);          \
    va_end(more);                                      \
    REAL(int, #name, const char*, int, ...);           \
    if (!of_path(path)) return opened(real(path, flags, mode), 0); \
    const int how = count('o');                        \
    if (how == FAIL) return errno = error, -1;         \
    const int handle = opened(real(path, flags, mode), 1); \
    after(how);                                        \
    return handle;                                     \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                   \
  int name(int place, const char* path, int flags, ...) { \
    va_list more;                                      \
    va_start(more, flags);                             \
    const mode_t mode = va_arg(more, mode_t);          \
    va_end(more);                                      \
    REAL(int, #name, int, const char*, int, ...);      \
    if (!of(place, path)) return opened(real(place, path, flags, mode), 0); \
    const int how = count('o');                        \
    if (how == FAIL) return errno = error, -1;         \
    const int handle = opened(real(place, path, flags, mode), 1); \
    after(how);                                        \
    return handle;                                     \
  }
OPENAT(openat)
OPENAT(openat64)

int close(int handle) {
  REAL(int, "close", int);
  if (!of_handle(handle)) return real(handle);
  note(handle, 0);
  const int how = count('c');
  const int result = real(handle); /* Linux closes it even if it says that it failed */
  after(how);
  return how == FAIL ? (errno = error, -1) : result;
}

#define TRANSFER(letter, name, place, ...)             \
  if (!of_handle(handle)) return place;                \
  const int how = count(letter);                       \
  if (how == FAIL) return errno = error, -1;           \
  if (how == HALF && size > 1) size /= 2;              \
  const ssize_t result = place;                        \
  const int saved = errno;                             \
  after(how);                                          \
  errno = saved;                                       \
  return result

ssize_t read(int handle, void* to, size_t size) {
  REAL(ssize_t, "read", int, void*, size_t);
  TRANSFER('r', read, real(handle, to, size));
}
ssize_t write(int handle, const void* from, size_t size) {
  REAL(ssize_t, "write", int, const void*, size_t);
  TRANSFER('w', write, real(handle, from, size));
}
#define PREAD(name)                                    \
  ssize_t name(int handle, void* to, size_t size, off_t where) { \
    REAL(ssize_t, #name, int, void*, size_t, off_t);   \
    TRANSFER('r', name, real(handle, to, size, where)); \
  }
PREAD(pread)
PREAD(pread64)
size_t fwrite(const void* from, size_t size, size_t items, FILE* file) { /* numpy's tofile */
  REAL(size_t, "fwrite", const void*, size_t, size_t, FILE*);
  if (!armed || !of_handle(fileno(file))) return real(from, size, items, file);
  const int how = count('w');
  if (how == FAIL) return errno = error, 0;
  const size_t result = real(from, size, items, file);
  after(how);
  return result;
}

#define ONE(letter, name)                              \
  int name(int handle) {                               \
    REAL(int, #name, int);                             \
    PLAIN(letter, of_handle(handle), real(handle));    \
  }
ONE('f', fsync)
ONE('f', fdatasync)
#define PATH(letter, name)                             \
  int name(const char* path) {                         \
    REAL(int, #name, const char*);                     \
    PLAIN(letter, of_path(path), real(path));          \
  }
PATH('u', unlink)
PATH('d', rmdir)
int mkdir(const char* path, mode_t mode) {
  REAL(int, "mkdir", const char*, mode_t);
  PLAIN('m', of_path(path), real(path, mode));
}
int unlinkat(int place, const char* path, int flags) {
  REAL(int, "unlinkat", int, const char*, int);
  PLAIN('u', of(place, path), real(place, path, flags));
}
int rename(const char* from, const char* to) {
  REAL(int, "rename", const char*, const char*);
  PLAIN('n', of_path(to), real(from, to));
}
int link(const char* from, const char* to) {
  REAL(int, "link", const char*, const char*);
  PLAIN('l', of_path(to), real(from, to));
}
int linkat(int a, const char* from, int b, const char* to, int flags) {
  REAL(int, "linkat", int, const char*, int, const char*, int);
  PLAIN('l', of(b, to), real(a, from, b, to, flags));
}
#define TRUNCATE(name)                                 \
  int name(int handle, off_t size) {                   \
    REAL(int, #name, int, off_t);                      \
    PLAIN('t', of_handle(handle), real(handle, size)); \
  }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)
#define SEEK(name)                                     \
  off_t name(int handle, off_t by, int from) {         \
    REAL(off_t, #name, int, off_t, int);               \
    PLAIN('k', of_handle(handle), real(handle, by, from)); \
  }
SEEK(lseek)
SEEK(lseek64)
#define STAT(name, type)                               \
  int name(const char* path, struct type* out) {       \
    REAL(int, #name, const char*, struct type*);       \
    PLAIN('s', of_path(path), real(path, out));        \
  }
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)
#define FSTAT(name, type)                              \
  int name(int handle, struct type* out) {             \
    REAL(int, #name, int, struct type*);               \
    PLAIN('s', of_handle(handle), real(handle, out));  \
  }
FSTAT(fstat, stat)
FSTAT(fstat64, stat64)
#define FSTATAT(name, type)                            \
  int name(int place, const char* path, struct type* out, int flags) { \
    REAL(int, #name, int, const char*, struct type*, int); \
    PLAIN('s', of(place, path), real(place, path, out, flags)); \
  }
FSTATAT(fstatat, stat)
FSTATAT(fstatat64, stat64)
int futimens(int handle, const struct timespec times[2]) {
  REAL(int, "futimens", int, const struct timespec*);
  PLAIN('i', of_handle(handle), real(handle, times));
}
int flock(int handle, int how_locked) {
  REAL(int, "flock", int, int);
  PLAIN('a', of_handle(handle), real(handle, how_locked));
}

#define MMAP(name)                                     \
  void* name(void* where, size_t size, int protection, int flags, int handle, off_t offset) { \
    REAL(void*, #name, void*, size_t, int, int, int, off_t); \
    if (!of_handle(handle)) return real(where, size, protection, flags, handle, offset); \
    const int how = count('p');                        \
    if (how == FAIL) return errno = error, MAP_FAILED; \
    void* const result = real(where, size, protection, flags, handle, offset); \
    after(how);                                        \
    return result;                                     \
  }
MMAP(mmap)
MMAP(mmap64)

DIR* opendir(const char* path) {
  REAL(DIR*, "opendir", const char*);
  if (!of_path(path)) return real(path);
  const int how = count('o');
  if (how == FAIL) return errno = error, NULL;
  DIR* const result = real(path);
  if (result) note(dirfd(result), 1);
  after(how);
  return result;
}
int closedir(DIR* place) {
  REAL(int, "closedir", DIR*);
  note(dirfd(place), 0);
  return real(place);
}
#define READDIR(name, type)                            \
  struct type* name(DIR* place) {                      \
    REAL(struct type*, #name, DIR*);                   \
    if (!armed || !of_handle(dirfd(place))) return real(place); \
    const int how = count('e');                        \
    if (how == FAIL) return errno = error, NULL;       \
    struct type* const result = real(place);           \
    after(how);                                        \
    return result;                                     \
  }
READDIR(readdir, dirent)
READDIR(readdir64, dirent64)
