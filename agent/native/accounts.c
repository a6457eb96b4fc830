// Accounts of the sandbox, parsed by hand: the name service of a C library would load code and settings that the
// sandbox can change.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent.h"
#include "platform.h"

enum { FILE_LIMIT = 256 * 1024, FIELDS = 7 };

/** A file cached until it changes on disk. */
struct kept_file {
  const char *path;
  char *text;
  struct stat seen;
  // Moment of the last check: a list of thousands of files needs one check.
  uint64_t looked_at;
  // Last result of `name_in`.
  char name[256];
};

static struct kept_file passwd = {.path = "/etc/passwd"};
static struct kept_file group = {.path = "/etc/group"};

static bool is_same(const struct stat *one, const struct stat *other) {
  return one->st_dev == other->st_dev && one->st_ino == other->st_ino && one->st_size == other->st_size &&
         one->st_mtim.tv_sec == other->st_mtim.tv_sec && one->st_mtim.tv_nsec == other->st_mtim.tv_nsec &&
         one->st_ctim.tv_sec == other->st_ctim.tv_sec && one->st_ctim.tv_nsec == other->st_ctim.tv_nsec;
}

static char *load(int fd) {
  char *text = malloc(FILE_LIMIT + 1);
  if (text == NULL) return NULL;
  size_t length = 0;
  while (length < FILE_LIMIT) {
    ssize_t count = read(fd, text + length, FILE_LIMIT - length);
    if (count <= 0) break;
    length += (size_t)count;
  }
  text[length] = 0;
  char *shrunk = realloc(text, length + 1);
  return shrunk ? shrunk : text;
}

/** True where the file is the one that was read. Links may lead out of the root here, but to no other such file. */
static bool is_unchanged(const struct kept_file *file) {
  struct stat now;
  return fstatat(root_directory, file->path + 1, &now, AT_SYMLINK_NOFOLLOW) == 0 && is_same(&now, &file->seen);
}

static const char *contents(struct kept_file *file) {
  struct stat now;
  if (file->text != NULL && (file->looked_at == moment || is_unchanged(file))) {
    file->looked_at = moment;
    return file->text;
  }
  int fd = platform_open(file->path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0);
  if (fd < 0 || fstat(fd, &now) < 0 || !S_ISREG(now.st_mode)) {
    if (fd >= 0) close(fd);
    free(file->text);
    file->text = NULL;
    return "";
  }
  if (file->text == NULL || !is_same(&now, &file->seen)) {
    free(file->text);
    file->text = load(fd);
    file->seen = now;
  }
  close(fd);
  file->looked_at = moment;
  return file->text ? file->text : "";
}

/** Splits the line at `*position` at its colons and advances. @return false at the end of the text. */
static bool next_line(const char **position, struct text fields[FIELDS], unsigned *count) {
  const char *line = *position;
  if (*line == 0) return false;
  const char *end = strchrnul(line, '\n');
  *position = *end ? end + 1 : end;
  *count = 0;
  for (const char *start = line; *count < FIELDS;) {
    const char *colon = memchr(start, ':', (size_t)(end - start));
    const char *stop = colon ? colon : end;
    fields[(*count)++] = (struct text){start, (uint32_t)(stop - start)};
    if (colon == NULL) break;
    start = colon + 1;
  }
  return true;
}

static bool number_of(struct text text, uint32_t *number) {
  uint64_t value = 0;
  if (text.length == 0 || text.length > 10) return false;
  for (uint32_t index = 0; index < text.length; index++) {
    if (text.bytes[index] < '0' || text.bytes[index] > '9') return false;
    value = value * 10 + (uint64_t)(text.bytes[index] - '0');
  }
  *number = (uint32_t)value;
  return value < UINT32_MAX;
}

static bool is_equal(struct text one, const char *bytes, size_t length) {
  return one.length == length && memcmp(one.bytes, bytes, length) == 0;
}

static void copy(char *to, size_t size, struct text from) {
  size_t length = from.length < size ? from.length : size - 1;
  memcpy(to, from.bytes, length);
  to[length] = 0;
}

static void add_groups(struct account *account) {
  struct text fields[FIELDS];
  unsigned count;
  size_t name_length = strlen(account->name);
  account->groups[account->group_count++] = account->gid;
  const char *position = contents(&group);
  while (next_line(&position, fields, &count)) {
    uint32_t gid;
    if (count < 4 || !number_of(fields[2], &gid) || gid == account->gid) continue;
    const char *end = fields[3].bytes + fields[3].length;
    for (const char *member = fields[3].bytes; member < end;) {
      const char *comma = memchr(member, ',', (size_t)(end - member));
      const char *stop = comma ? comma : end;
      if (is_equal((struct text){member, (uint32_t)(stop - member)}, account->name, name_length)) {
        if (account->group_count < GROUPS_LIMIT) account->groups[account->group_count++] = gid;
        break;
      }
      member = stop + 1;
    }
  }
}

static bool find_account(struct text name, const uint32_t *uid, struct account *account) {
  struct text fields[FIELDS];
  unsigned count;
  const char *position = contents(&passwd);
  while (next_line(&position, fields, &count)) {
    uint32_t line_uid, line_gid;
    if (count < FIELDS || fields[0].length == 0) continue;
    if (!number_of(fields[2], &line_uid) || !number_of(fields[3], &line_gid)) continue;
    if (uid ? line_uid != *uid : !is_equal(fields[0], name.bytes, name.length)) continue;
    account->uid = line_uid;
    account->gid = line_gid;
    account->group_count = 0;
    copy(account->name, sizeof account->name, fields[0]);
    copy(account->home, sizeof account->home, fields[5]);
    copy(account->shell, sizeof account->shell, fields[6]);
    if (account->home[0] != '/') strcpy(account->home, "/");
    return true;
  }
  return false;
}

bool account_by_name(struct text name, struct account *account) {
  if (name.length == 0 || !find_account(name, NULL, account)) return false;
  add_groups(account);
  return true;
}

static const char *name_in(struct kept_file *file, uint32_t id, char text[16]) {
  struct text fields[FIELDS];
  unsigned count;
  const char *position = contents(file);
  while (next_line(&position, fields, &count)) {
    uint32_t line_id;
    if (count < 3 || fields[0].length == 0 || !number_of(fields[2], &line_id) || line_id != id) continue;
    copy(file->name, sizeof file->name, fields[0]);
    return file->name;
  }
  snprintf(text, 16, "%u", id);
  return text;
}

const char *user_name(uint32_t uid, char text[16]) { return name_in(&passwd, uid, text); }

const char *group_name(uint32_t gid, char text[16]) { return name_in(&group, gid, text); }

int resolve_identity(const struct identity *identity, struct account *account) {
  account->is_self = false;
  if (identity->kind == IDENTITY_NAME) return account_by_name(identity->name, account) ? 0 : ENOENT;
  uint32_t uid = identity->kind == IDENTITY_SELF ? (uint32_t)geteuid() : identity->uid;
  memset(account, 0, sizeof *account);
  strcpy(account->home, "/");
  bool is_known = find_account((struct text){"", 0}, &uid, account);
  account->uid = uid;
  if (identity->kind == IDENTITY_SELF) {
    account->gid = (uint32_t)getegid();
    if (is_known) add_groups(account);
    return 0;
  }
  account->gid = identity->gid;
  account->group_count = identity->group_count;
  memcpy(account->groups, identity->groups, identity->group_count * sizeof account->groups[0]);
  return 0;
}
