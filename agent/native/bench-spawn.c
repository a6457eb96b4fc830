// The floor for the agent's benchmark: starting a program and waiting for its exit, in C.
// usage: bench-spawn COUNT WIDTH PROGRAM; prints one duration in microseconds per line, then the total.
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>

static double now_us(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

struct running {
  pid_t pid;
  double started_us;
};

static void start(struct running *running, char *program) {
  char *words[] = {program, NULL}, *variables[] = {NULL};
  running->started_us = now_us();
  if (posix_spawn(&running->pid, program, NULL, NULL, words, variables) != 0) exit(1);
}

int main(int count, char **words) {
  if (count != 4) return 64;
  int total = atoi(words[1]), width = atoi(words[2]);
  if (total < width || width < 1 || width > 1024) return 64;
  struct running running[1024];
  double began_us = now_us();
  for (int index = 0; index < width; index++) start(&running[index], words[3]);
  for (int ended = 0, started = width; ended < total; ended++) {
    pid_t pid = wait(NULL);
    int index = 0;
    while (index < width - 1 && running[index].pid != pid) index++;
    printf("%.1f\n", now_us() - running[index].started_us);
    running[index].pid = 0;
    if (started < total) {
      start(&running[index], words[3]);
      started++;
    }
  }
  printf("total %.1f\n", now_us() - began_us);
  return 0;
}
