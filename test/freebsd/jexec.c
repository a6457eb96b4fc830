// Stands in for jexec(8) where there is no FreeBSD: its options, environment and failures, as its manual and
// source of FreeBSD 14 have them.
//
//   jexec [-l] [-d DIRECTORY] [-u USER | -U USER] JAIL [COMMAND …]
//
// FreeBSD has one space of process ids: jexec(8) becomes the command, which the host sees under the same id, and a process
// inside sees and signals processes of its jail alone. So it is here: jexec enters the namespaces of the jail, of which
// there is none of PIDs, a user namespace and a /proc that shows nothing outside of it limit what it sees, and
// jail-signals.c whom it signals. A user who is not root sees own processes alone (there, with
// security.bsd.see_other_uids=0).
//
// Source: usr.sbin/jexec/jexec.c (main, get_user_info), lib/libjail/jail_getid.c (jail_getid). Without -l, -u and -U it
// changes neither the environment nor the user, and it closes no descriptor. -d came with 15. Not here: both at once,
// login.conf(5) beyond the class `default`, MAC labels, cpusets, `-i` of a shell without a command.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "jail-table.h"

extern char **environ;

static _Noreturn void fail(const char *what, const char *why) {
  fprintf(stderr, "jexec: %s: %s\n", what, why);
  exit(1);
}

/** The namespace of users comes last: it ends the rights to the others. */
static void enter(const struct jail *jail) {
  static const char *const names[] = {"mnt", "uts", "ipc", "net", "user"};
  enum { COUNT = sizeof names / sizeof names[0] };
  int descriptors[COUNT];
  char path[64];
  for (unsigned index = 0; index < COUNT; index++) {
    snprintf(path, sizeof path, "/proc/%d/ns/%s", (int)jail->init, names[index]);
    descriptors[index] = open(path, O_RDONLY | O_CLOEXEC);
  }
  for (unsigned index = 0; index < COUNT; index++) {
    if (descriptors[index] < 0 || setns(descriptors[index], 0) < 0) fail("jail_attach", strerror(errno));
    close(descriptors[index]);
  }
}

static void become(const struct passwd *user) {
  if (initgroups(user->pw_name, user->pw_gid) < 0 || setgid(user->pw_gid) < 0 || setuid(user->pw_uid) < 0) {
    fail("setusercontext", strerror(errno));
  }
}

/** Environment that login.conf(5) of FreeBSD 14 gives the class `default`, after -l has dropped all but TERM. */
static void clear_environment(const struct passwd *user, bool has_user) {
  const char *terminal = getenv("TERM");
  char *kept = terminal ? strdup(terminal) : NULL;
  clearenv();
  if (kept != NULL) setenv("TERM", kept, 1);
  setenv("PATH", "/bin:/usr/bin", 1);
  if (has_user) {
    char text[TEXT_BYTES];
    snprintf(text, sizeof text, "/sbin:/bin:/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin:%s/bin", user->pw_dir);
    setenv("PATH", text, 1);
    snprintf(text, sizeof text, "/var/mail/%s", user->pw_name);
    setenv("MAIL", text, 1);
    setenv("BLOCKSIZE", "K", 1);
    setenv("LANG", "C.UTF-8", 1);
    setenv("MM_CHARSET", "UTF-8", 1);
    umask(022);
  }
  setenv("HOME", user->pw_dir, 1);
  setenv("SHELL", user->pw_shell, 1);
  setenv("USER", user->pw_name, 1);
}

int main(int count, char **words) {
  const char *directory = NULL, *host_user = NULL, *jail_user = NULL;
  bool is_login = false;
  struct jail jail;
  open_table();
  for (int option; (option = getopt(count, words, "+d:lnu:U:")) != -1;) {
    if (option == 'd') directory = optarg;
    else if (option == 'l') is_login = true;
    else if (option == 'u') host_user = optarg;
    else if (option == 'U') jail_user = optarg;
    else return 1;
  }
  if (optind >= count || (host_user != NULL && jail_user != NULL)) {
    fprintf(stderr, "usage: jexec [-l] [-d working-directory] [-u username | -U username] jail [command ...]\n");
    return 1;
  }
  if (!find_jail(words[optind], &jail)) {
    fprintf(stderr, "jexec: %s\n", reason_without(words[optind]));
    return 1;
  }
  struct passwd *user = NULL;
  if (host_user != NULL && (user = getpwnam(host_user)) == NULL) fail(host_user, "no such user");
  int warden = reach_warden(&jail);
  char file[TEXT_BYTES * 2];
  snprintf(file, sizeof file, "%s/%s", in_table("groups"), jail.name);
  FILE *limits = fopen(file, "re");
  while (limits != NULL && fgets(file, sizeof file, limits) != NULL) {
    file[strcspn(file, "\n")] = 0;
    int fd = open(file, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, "0", 1) != 1) fail("rctl", strerror(errno));
    close(fd);
  }
  if (limits != NULL) fclose(limits);
  enter(&jail);
  if (chdir("/") < 0) fail("chdir", strerror(errno));
  if (jail_user != NULL && (user = getpwnam(jail_user)) == NULL) fail(jail_user, "no such user");
  bool has_user = user != NULL;
  if (user == NULL && (user = getpwuid(getuid())) == NULL) fail("getpwuid", "no such user");
  if (is_login) clear_environment(user, has_user);
  const char *home = is_login && has_user ? user->pw_dir : NULL;
  if (submit_signals(warden) < 0 || confine() < 0) fail("jail_attach", strerror(errno));
  if (has_user) become(user);
  const char *where = directory ? directory : home;
  if (where != NULL && chdir(where) < 0) {
    fprintf(stderr, "jexec: chdir: %s: %s\n", where, strerror(errno));
    return 1;
  }
  char *shell[] = {user->pw_shell, NULL};
  char **command = optind + 1 < count ? words + optind + 1 : shell;
  execvp(command[0], command);
  fprintf(stderr, "jexec: execvp: %s: %s\n", command[0], strerror(errno));
  return 1;
}
