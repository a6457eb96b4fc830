// See sys/procctl.h.
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/procctl.h>
#include <unistd.h>

static pid_t parent_of(const char *pid) {
  char path[64];
  int parent = -1;
  snprintf(path, sizeof path, "/proc/%.20s/status", pid);
  FILE *status = fopen(path, "re");
  if (status == NULL) return -1;
  for (char line[256]; parent < 0 && fgets(line, sizeof line, status) != NULL;) sscanf(line, "PPid: %d", &parent);
  fclose(status);
  return parent;
}

/** Children alone: their children become this process's when they die. */
static int kill_children(struct procctl_reaper_kill *request) {
  DIR *processes = opendir("/proc");
  if (processes == NULL) return -1;
  const struct dirent *entry;
  while ((entry = readdir(processes)) != NULL) {
    if (entry->d_name[0] < '1' || entry->d_name[0] > '9' || parent_of(entry->d_name) != getpid()) continue;
    if (kill(atoi(entry->d_name), request->rk_sig) == 0) request->rk_killed++;
  }
  closedir(processes);
  errno = ESRCH;
  return request->rk_killed > 0 ? 0 : -1;
}

int procctl(idtype_t kind, id_t id, int command, void *data) {
  errno = EINVAL;
  if (kind != P_PID || id != 0) return -1;
  if (command == PROC_REAP_ACQUIRE) return prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  if (command == PROC_TRACE_CTL) return prctl(PR_SET_DUMPABLE, *(int *)data != PROC_TRACE_CTL_DISABLE, 0, 0, 0);
  return command == PROC_REAP_KILL ? kill_children(data) : -1;
}

/** The login uid of Linux, which processes hand on as sessions of FreeBSD do their name. */
int setlogin(const char *name) {
  FILE *accounts = fopen("/etc/passwd", "re");
  if (accounts == NULL) return -1;
  long uid = -1;
  for (char line[1024], found[256]; uid < 0 && fgets(line, sizeof line, accounts) != NULL;) {
    long number;
    if (sscanf(line, "%255[^:]:%*[^:]:%ld", found, &number) == 2 && strcmp(found, name) == 0) uid = number;
  }
  fclose(accounts);
  FILE *login = uid < 0 ? NULL : fopen("/proc/self/loginuid", "we");
  if (login == NULL) return -1;
  fprintf(login, "%ld", uid);
  return fclose(login);
}
