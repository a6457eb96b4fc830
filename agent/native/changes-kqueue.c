// Directory changes with kqueue(2). It reports only that a directory has changed, so each is compared with its last
// listing. Changes that were undone in between are missed. Every entry takes a descriptor, which also keeps its inode
// number from being reused.
#include "platform.h"
#ifndef COPPICE_HAS_INOTIFY
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>

#include <sys/event.h>
#include <unistd.h>

enum { BUCKETS = 1024, EVENTS = 256, ROUNDS = 16 };
/** Descriptors that a watch leaves to commands and files of the sandbox. */
enum { SPARE = 32 };
enum {
  DIRECTORY_EVENTS = NOTE_WRITE | NOTE_EXTEND | NOTE_DELETE | NOTE_REVOKE,
  ENTRY_EVENTS = NOTE_DELETE | NOTE_RENAME | NOTE_ATTRIB,
  FILE_EVENTS = ENTRY_EVENTS | NOTE_WRITE | NOTE_EXTEND,
};

/** Last known state of a name in a directory. */
struct entry {
  struct directory *directory;
  struct entry *next_touched;
  int fd;
  uint32_t events;
  bool is_directory, is_file;
  // Another file has its name now.
  bool is_replaced;
  // Its entry under the previous name, which is gone.
  struct entry *earlier;
  bool is_elsewhere;
  ino_t inode;
  dev_t device;
  struct stat status;
  char name[];
};

struct directory {
  struct directory *next_by_id, *next_by_inode, *next_dirty;
  int id, fd;
  ino_t inode;
  dev_t device;
  bool is_dirty, is_gone;
  unsigned count;
  // By name.
  struct entry **entries;
};

/** Purpose of a descriptor. */
struct purpose {
  struct directory *directory;
  struct entry *entry;
};

struct pending {
  struct pending *next;
  struct change change;
  char name[];
};

struct entries {
  struct entry **items;
  unsigned count, capacity;
};

static struct directory *by_id[BUCKETS], *by_inode[BUCKETS];
static int last_id;
static uint32_t last_cookie;
static struct purpose *purposes;
static int purpose_count;

static struct directory *dirty, **dirty_end = &dirty;
static struct entry *touched, **touched_end = &touched;
static struct pending *pending, **pending_end = &pending;

static struct directory **id_bucket(int id) { return &by_id[(unsigned)id % BUCKETS]; }
static struct directory **inode_bucket(ino_t inode) { return &by_inode[inode % BUCKETS]; }

// --- descriptors

static bool set_purpose(int fd, struct purpose purpose) {
  if (fd >= purpose_count) {
    int count = fd < 512 ? 1024 : 2 * fd;
    struct purpose *grown = realloc(purposes, (size_t)count * sizeof *purposes);
    if (grown == NULL) return false;
    memset(grown + purpose_count, 0, (size_t)(count - purpose_count) * sizeof *grown);
    purposes = grown;
    purpose_count = count;
  }
  purposes[fd] = purpose;
  return true;
}

static void close_purpose(int fd) {
  if (fd < 0) return;
  if (fd < purpose_count) purposes[fd] = (struct purpose){NULL, NULL};
  close(fd);
}

static bool listen_to(int changes, int fd, uint32_t events) {
  struct kevent change;
  EV_SET(&change, (uintptr_t)fd, EVFILT_VNODE, EV_ADD | EV_CLEAR, events, 0, NULL);
  return kevent(changes, &change, 1, NULL, 0, NULL) == 0;
}

/** @return 0, or an errno where fewer than SPARE descriptors can be had: by tries, because limits of jails have no number. */
static int require_spare(int fd) {
  int spare[SPARE], count = 0;
  while (count < SPARE && (spare[count] = fcntl(fd, F_DUPFD_CLOEXEC, 3)) >= 0) count++;
  int error = count < SPARE ? errno : 0;
  while (count > 0) close(spare[--count]);
  return error;
}

// --- what a directory holds

static int compare_names(const void *one, const void *other) {
  return strcmp((*(struct entry *const *)one)->name, (*(struct entry *const *)other)->name);
}

static int compare_inodes(const void *one, const void *other) {
  const struct entry *first = *(struct entry *const *)one, *second = *(struct entry *const *)other;
  if (first->inode != second->inode) return first->inode < second->inode ? -1 : 1;
  return first->device == second->device ? 0 : first->device < second->device ? -1 : 1;
}

/** Orders by creation time, as far as that is known. */
static int compare_times(const void *one, const void *other) {
  const struct timespec *first = &(*(struct entry *const *)one)->status.st_ctim;
  const struct timespec *second = &(*(struct entry *const *)other)->status.st_ctim;
  if (first->tv_sec != second->tv_sec) return first->tv_sec < second->tv_sec ? -1 : 1;
  if (first->tv_nsec != second->tv_nsec) return first->tv_nsec < second->tv_nsec ? -1 : 1;
  return compare_names(one, other);
}

static void sort(struct entries *entries, int (*compare)(const void *one, const void *other)) {
  if (entries->count > 0) qsort(entries->items, entries->count, sizeof(struct entry *), compare);
}

static bool append(struct entries *entries, struct entry *entry) {
  if (entries->count == entries->capacity) {
    unsigned capacity = entries->capacity == 0 ? 32 : 2 * entries->capacity;
    struct entry **items = realloc(entries->items, capacity * sizeof(struct entry *));
    if (items == NULL) return false;
    entries->items = items;
    entries->capacity = capacity;
  }
  entries->items[entries->count++] = entry;
  return true;
}

static void free_entry(struct entry *entry) {
  close_purpose(entry->fd);
  free(entry);
}

static void free_entries(struct entries *entries) {
  for (unsigned index = 0; index < entries->count; index++) free_entry(entries->items[index]);
  free(entries->items);
  *entries = (struct entries){NULL, 0, 0};
}

static struct entry *make_entry(struct directory *directory, const struct dirent *from) {
  size_t size = strlen(from->d_name) + 1;
  struct entry *entry = calloc(1, sizeof *entry + size);
  if (entry == NULL) return NULL;
  entry->directory = directory;
  entry->fd = -1;
  entry->inode = from->d_ino;
  entry->device = directory->device;
  memcpy(entry->name, from->d_name, size);
  return entry;
}

/** Reads all names. @return 0 or an errno. */
static int look(struct directory *directory, struct entries *entries) {
  int fd = openat(directory->fd, ".", O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC);
  DIR *names = fd >= 0 ? fdopendir(fd) : NULL;
  if (names == NULL) {
    int error = errno;
    if (fd >= 0) close(fd);
    // A removed directory is empty.
    return error == ENOENT ? 0 : error;
  }
  int error = 0;
  const struct dirent *name;
  while (error == 0 && (name = readdir(names)) != NULL) {
    if (strcmp(name->d_name, ".") == 0 || strcmp(name->d_name, "..") == 0) continue;
    struct entry *entry = make_entry(directory, name);
    if (entry != NULL && append(entries, entry)) continue;
    free(entry);
    error = ENOMEM;
  }
  closedir(names);
  sort(entries, compare_names);
  return error;
}

/** Opens an entry and listens to it. @return 0, even if it has gone, or an errno. */
static int attend(int changes, struct entry *entry) {
  int fd = openat(entry->directory->fd, entry->name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return is_out_of_descriptors(errno) ? errno : 0;
  if (!set_purpose(fd, (struct purpose){NULL, entry})) {
    close(fd);
    return ENOMEM;
  }
  entry->fd = fd;
  if (fstat(fd, &entry->status) < 0) return 0;
  entry->is_directory = S_ISDIR(entry->status.st_mode);
  entry->is_file = S_ISREG(entry->status.st_mode);
  // An unreadable entry is not listened to.
  if (entry->is_file || entry->is_directory) listen_to(changes, fd, entry->is_file ? FILE_EVENTS : ENTRY_EVENTS);
  // Again, for a write between the first call and the listening.
  fstat(fd, &entry->status);
  return 0;
}

// --- directories

static void unlink_directory(struct directory *directory) {
  struct directory **link = id_bucket(directory->id);
  while (*link != directory) link = &(*link)->next_by_id;
  *link = directory->next_by_id;
  link = inode_bucket(directory->inode);
  while (*link != directory) link = &(*link)->next_by_inode;
  *link = directory->next_by_inode;
}

static void free_directory(struct directory *directory) {
  struct entries entries = {directory->entries, directory->count, directory->count};
  free_entries(&entries);
  close_purpose(directory->fd);
  free(directory);
}

int platform_changes_open(void) {
  int changes = kqueue();
  if (changes >= 0) fcntl(changes, F_SETFD, FD_CLOEXEC);
  return changes;
}

static int begin(int changes, struct directory *directory) {
  if (directory->fd < 0) return errno;
  if (!set_purpose(directory->fd, (struct purpose){directory, NULL})) return ENOMEM;
  if (!listen_to(changes, directory->fd, DIRECTORY_EVENTS)) return errno;
  struct entries entries = {NULL, 0, 0};
  int error = look(directory, &entries);
  for (unsigned index = 0; index < entries.count && error == 0; index++) error = attend(changes, entries.items[index]);
  directory->entries = entries.items;
  directory->count = entries.count;
  return error != 0 ? error : require_spare(directory->fd);
}

int platform_changes_add(int changes, int directory) {
  struct stat status;
  if (fstat(directory, &status) < 0) return -1;
  struct directory *known = *inode_bucket(status.st_ino);
  while (known != NULL && (known->inode != status.st_ino || known->device != status.st_dev)) known = known->next_by_inode;
  if (known != NULL) return known->id;
  struct directory *added = calloc(1, sizeof *added);
  if (added == NULL) return -1;
  added->fd = fcntl(directory, F_DUPFD_CLOEXEC, 3);
  added->inode = status.st_ino;
  added->device = status.st_dev;
  int error = begin(changes, added);
  if (error != 0) {
    free_directory(added);
    errno = error;
    return -1;
  }
  added->id = ++last_id;
  added->next_by_id = *id_bucket(added->id);
  *id_bucket(added->id) = added;
  added->next_by_inode = *inode_bucket(added->inode);
  *inode_bucket(added->inode) = added;
  return added->id;
}

void platform_changes_remove(int changes, int watched) {
  (void)changes;
  struct directory *directory = *id_bucket(watched);
  while (directory != NULL && directory->id != watched) directory = directory->next_by_id;
  if (directory == NULL) return;
  unlink_directory(directory);
  free_directory(directory);
}

// --- changes: all are found before any is reported, because reports add and remove directories

static void queue(struct change change) {
  size_t size = strlen(change.name) + 1;
  struct pending *added = malloc(sizeof *added + size);
  if (added == NULL) return;
  memcpy(added->name, change.name, size);
  added->next = NULL;
  added->change = change;
  *pending_end = added;
  pending_end = &added->next;
}

static void queue_entry(const struct entry *entry, uint8_t kind, uint32_t cookie) {
  queue((struct change){
      .directory = entry->directory->id,
      .kind = kind,
      .is_directory = entry->is_directory,
      .cookie = cookie,
      .name = entry->name,
  });
}

static void note(const struct kevent *event) {
  struct purpose purpose = event->ident < (uintptr_t)purpose_count ? purposes[event->ident] : (struct purpose){NULL, NULL};
  struct directory *directory = purpose.directory;
  struct entry *entry = purpose.entry;
  if (directory != NULL) {
    if (event->fflags & (NOTE_DELETE | NOTE_REVOKE)) directory->is_gone = true;
    if (directory->is_dirty) return;
    directory->is_dirty = true;
    *dirty_end = directory;
    dirty_end = &directory->next_dirty;
  } else if (entry != NULL && event->fflags != 0) {
    if (entry->events == 0) {
      *touched_end = entry;
      touched_end = &entry->next_touched;
    }
    entry->events |= event->fflags;
  }
}

static bool drain(int changes) {
  struct kevent events[EVENTS];
  struct timespec at_once = {0, 0};
  bool has_any = false;
  // A process that changes something without a pause must not block this one.
  for (unsigned round = 0; round < ROUNDS; round++) {
    int count = kevent(changes, NULL, 0, events, EVENTS, &at_once);
    for (int index = 0; index < count; index++) note(&events[index]);
    has_any = has_any || count > 0;
    if (count < EVENTS) break;
  }
  return has_any;
}

/** Finds the changes of an entry that still has its name. */
static void find_in_entry(struct entry *entry) {
  struct stat now, *before = &entry->status;
  uint32_t events = entry->events;
  entry->events &= NOTE_DELETE | NOTE_RENAME;
  if (fstat(entry->fd, &now) < 0) return;
  bool is_same = now.st_mode == before->st_mode && now.st_uid == before->st_uid && now.st_gid == before->st_gid;
  // FreeBSD reports a truncation as a change of attributes.
  bool is_cut = entry->is_file && now.st_size != before->st_size && !(events & (NOTE_WRITE | NOTE_EXTEND));
  *before = now;
  if (events & NOTE_ATTRIB && !(is_same && is_cut) && now.st_nlink > 0) queue_entry(entry, CHANGE_MODE, 0);
  if (entry->is_file && (is_cut || events & (NOTE_WRITE | NOTE_EXTEND))) queue_entry(entry, CHANGE_WRITE, 0);
}

/**
 * Compares a directory with its last listing, and stores the new one.
 * @param gone,come get the entries that are only in one of them. They own the first.
 * @return 0 or an errno.
 */
static int find_in_directory(int changes, struct directory *directory, struct entries *gone, struct entries *come) {
  struct entries now = {NULL, 0, 0};
  int error = look(directory, &now);
  if (error != 0) {
    free_entries(&now);
    return error;
  }
  unsigned old_index = 0;
  for (unsigned index = 0; index < now.count || old_index < directory->count;) {
    struct entry *old = old_index < directory->count ? directory->entries[old_index] : NULL;
    struct entry *found = index < now.count ? now.items[index] : NULL;
    int order = old == NULL ? 1 : found == NULL ? -1 : strcmp(old->name, found->name);
    if (order == 0 && old->inode == found->inode) {
      now.items[index] = old;
      free(found);
    } else {
      if (order <= 0 && !append(gone, old)) error = ENOMEM;
      if (order <= 0) old->is_replaced = order == 0;
      if (order >= 0 && (error = error ? error : attend(changes, found)) == 0 && !append(come, found)) error = ENOMEM;
    }
    old_index += order <= 0;
    index += order >= 0;
  }
  free(directory->entries);
  directory->entries = now.items;
  directory->count = now.count;
  return error != 0 || come->count == 0 ? error : require_spare(directory->fd);
}

/** Matches removed with added entries by inode, which could not be reused in between. */
static void match(struct entries *gone, struct entries *come) {
  sort(come, compare_inodes);
  for (unsigned index = 0; index < gone->count && come->count > 0; index++) {
    struct entry *old = gone->items[index];
    struct entry **found = bsearch(&old, come->items, come->count, sizeof(struct entry *), compare_inodes);
    if (found == NULL || old->fd < 0 || (*found)->earlier != NULL) continue;
    (*found)->earlier = old;
    old->is_elsewhere = true;
  }
  sort(come, compare_times);
}

static uint32_t next_cookie(void) {
  if (++last_cookie == 0) last_cookie = 1;
  return last_cookie;
}

static void queue_gone(const struct entry *entry) {
  struct stat status;
  if (entry->is_elsewhere || entry->is_replaced) return;
  bool is_left = entry->events & NOTE_RENAME && !(entry->events & NOTE_DELETE);
  bool has_name = entry->fd >= 0 && fstat(entry->fd, &status) == 0 && status.st_nlink > 0;
  if (is_left && has_name) queue_entry(entry, CHANGE_RENAME, next_cookie());
  else queue_entry(entry, CHANGE_REMOVE, 0);
}

static void queue_come(struct entry *entry) {
  if (entry->earlier != NULL) {
    uint32_t cookie = next_cookie();
    queue_entry(entry->earlier, CHANGE_RENAME, cookie);
    queue_entry(entry, CHANGE_CREATE, cookie);
    entry->earlier = NULL;
    return;
  }
  queue_entry(entry, CHANGE_CREATE, 0);
  // The file may have been written before its changes were reported.
  if (entry->is_file && entry->status.st_size > 0) queue_entry(entry, CHANGE_WRITE, 0);
}

static void find_all(int changes) {
  struct entries gone = {NULL, 0, 0}, come = {NULL, 0, 0};
  int error = 0;
  for (struct entry *entry = touched; entry != NULL; entry = entry->next_touched) find_in_entry(entry);
  for (struct directory *directory = dirty; directory != NULL; directory = directory->next_dirty) {
    if (error == 0) error = find_in_directory(changes, directory, &gone, &come);
  }
  match(&gone, &come);
  for (unsigned index = 0; index < gone.count; index++) queue_gone(gone.items[index]);
  for (unsigned index = 0; index < come.count; index++) queue_come(come.items[index]);
  for (struct directory *directory = dirty; directory != NULL; directory = directory->next_dirty) {
    if (directory->is_gone) queue((struct change){.directory = directory->id, .kind = CHANGE_GONE, .name = ""});
  }
  if (error != 0) queue((struct change){.kind = CHANGE_OVERFLOW, .error = error, .name = ""});
  for (struct entry *entry = touched, *next; entry != NULL; entry = next) {
    next = entry->next_touched;
    entry->next_touched = NULL;
    entry->events = 0;
  }
  for (struct directory *directory = dirty, *next; directory != NULL; directory = next) {
    next = directory->next_dirty;
    directory->next_dirty = NULL;
    directory->is_dirty = directory->is_gone = false;
  }
  touched = NULL;
  touched_end = &touched;
  dirty = NULL;
  dirty_end = &dirty;
  free_entries(&gone);
  free(come.items);
}

bool platform_changes_read(int changes, void (*on_change)(const struct change *change)) {
  if (!drain(changes)) return false;
  find_all(changes);
  while (pending != NULL) {
    struct pending *next = pending->next;
    struct change change = pending->change;
    change.name = pending->name;
    on_change(&change);
    free(pending);
    pending = next;
  }
  pending_end = &pending;
  return true;
}
#endif
