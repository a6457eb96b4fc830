#include "aside.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "platform.h"

#ifdef COPPICE_IS_FREEBSD
// Its threads share one identity, which the loop changes for files.
bool aside_launch(const struct launch *launch) {
  (void)launch;
  return false;
}
const struct launch *aside_launched(void) { return NULL; }
void aside_wait(void) {}
pid_t aside_pid(void) { return 0; }
int aside_descriptor(void) { return -1; }
void aside_close(int fd) { close(fd); }
#else

// More than launch.c needs for paths and messages.
enum { STACK_BYTES = 256 * 1024 };

static struct launch launch;
static struct account account;
static struct spawn_request request;
/** The strings of the request, after the pointers to them. */
static char **copied;
static bool is_launching;
/** A descriptor to close, until it is closed; otherwise -1. */
static atomic_int closing = -1;
/** One byte for each order, and one for each launch that has ended. */
static int orders[2] = {-1, -1}, results[2] = {-1, -1};
static bool is_running;

enum { LAUNCH, CLOSE };

static void *serve(void *unused) {
  char order;
  while (read(orders[0], &order, 1) == 1) {
    if (order == CLOSE) {
      close(atomic_load(&closing));
      atomic_store(&closing, -1);
      continue;
    }
    launch_child(&launch, -1);
    if (write(results[1], &order, 1) != 1) abort();
  }
  return unused;
}

static bool is_free(void) { return !is_launching && atomic_load(&closing) < 0; }

static void give_order(char order) {
  if (write(orders[1], &order, 1) != 1) abort();
}

static bool run(void) {
  if (is_running) return true;
  if (orders[0] < 0 && pipe2(orders, O_CLOEXEC) < 0) return false;
  if (results[0] < 0 && pipe2(results, O_CLOEXEC) < 0) return false;
  pthread_attr_t attributes;
  pthread_t thread;
  if (pthread_attr_init(&attributes) != 0) return false;
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  // Signals are blocked in it, as in the loop outside its wait. It fails at the sandbox's limit of processes.
  is_running = pthread_attr_setstacksize(&attributes, STACK_BYTES) == 0 &&
               pthread_create(&thread, &attributes, serve, NULL) == 0;
  pthread_attr_destroy(&attributes);
  return is_running;
}

static size_t count_of(char *const *strings, size_t *bytes) {
  size_t count = 0;
  for (; strings[count] != NULL; count++) *bytes += strlen(strings[count]) + 1;
  return count;
}

/** Copies strings and the NULL after them. */
static char *copy_strings(char *const *strings, char **pointers, char *end) {
  for (; *strings != NULL; strings++) {
    *pointers++ = end;
    end = stpcpy(end, *strings) + 1;
  }
  *pointers = NULL;
  return end;
}

/** Copies the request, for its strings are in a buffer that the next frames overwrite. Frees the copy before. */
static bool copy(const struct launch *original) {
  free(copied);
  size_t bytes = strlen(original->directory) + 1;
  size_t arguments = count_of(original->request->arguments, &bytes);
  size_t variables = count_of(original->request->variables, &bytes);
  size_t pointers = 1 + arguments + 1 + variables + 1;
  copied = malloc(pointers * sizeof *copied + bytes);
  if (copied == NULL) return false;
  account = *original->account;
  request = *original->request;
  request.arguments = copied + 1;
  request.variables = request.arguments + arguments + 1;
  char *end = copy_strings(original->request->arguments, request.arguments, (char *)(copied + pointers));
  end = copy_strings(original->request->variables, request.variables, end);
  launch = *original;
  launch.account = &account;
  launch.request = &request;
  launch.directory = strcpy(end, original->directory);
  return true;
}

bool aside_launch(const struct launch *original) {
  if (!is_free() || !run() || !copy(original)) return false;
  give_order(LAUNCH);
  return is_launching = true;
}

const struct launch *aside_launched(void) {
  struct pollfd poller = {.fd = results[0], .events = POLLIN};
  char byte;
  if (!is_launching || poll(&poller, 1, 0) != 1 || read(results[0], &byte, 1) != 1) return NULL;
  is_launching = false;
  return &launch;
}

void aside_wait(void) {
  struct pollfd poller = {.fd = results[0], .events = POLLIN};
  while (is_launching && poll(&poller, 1, -1) != 1) continue;
}

pid_t aside_pid(void) { return is_launching ? launch.pid : 0; }

int aside_descriptor(void) { return is_launching ? results[0] : -1; }

void aside_close(int fd) {
  if (!is_free() || !run()) {
    close(fd);
    return;
  }
  atomic_store(&closing, fd);
  give_order(CLOSE);
}
#endif
