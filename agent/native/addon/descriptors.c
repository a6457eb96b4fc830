// An addon of Node that takes over descriptors of other processes, and gives them some: calls that Node does not have.
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

// What is used of Node-API, whose binary interface is stable: its headers are not where every Node is.
typedef struct napi_env__ *napi_env;
typedef struct napi_value__ *napi_value;
typedef struct napi_callback_info__ *napi_callback_info;
typedef napi_value (*napi_callback)(napi_env env, napi_callback_info info);
int napi_create_function(napi_env env, const char *name, size_t length, napi_callback call, void *data, napi_value *result);
int napi_create_int32(napi_env env, int32_t value, napi_value *result);
int napi_get_cb_info(napi_env env, napi_callback_info info, size_t *count, napi_value *values, napi_value *self, void **data);
int napi_get_value_int32(napi_env env, napi_value value, int32_t *result);
int napi_set_named_property(napi_env env, napi_value object, const char *name, napi_value value);

/** Reads two integers. Absent ones, or other values, are -1, which no process and no descriptor is. */
static void read_arguments(napi_env env, napi_callback_info info, int32_t numbers[2]) {
  napi_value values[2];
  size_t count = 2;
  numbers[0] = numbers[1] = -1;
  if (napi_get_cb_info(env, info, &count, values, NULL, NULL) != 0) return;
  for (size_t index = 0; index < 2 && index < count; index++) napi_get_value_int32(env, values[index], &numbers[index]);
}

static napi_value answer(napi_env env, long result) {
  napi_value value = NULL;
  napi_create_int32(env, result < 0 ? -errno : (int32_t)result, &value);
  return value;
}

/** `openProcess(pid)`: a descriptor of a process, or minus an errno. */
static napi_value open_process(napi_env env, napi_callback_info info) {
  int32_t numbers[2];
  read_arguments(env, info, numbers);
  return answer(env, syscall(SYS_pidfd_open, numbers[0], 0));
}

/** `take(process, number)`: a duplicate of that process's descriptor, or minus an errno. */
static napi_value take(napi_env env, napi_callback_info info) {
  int32_t numbers[2];
  read_arguments(env, info, numbers);
  return answer(env, syscall(SYS_pidfd_getfd, numbers[0], numbers[1], 0));
}

/** Sends a descriptor by a socket. It does not wait, whatever flags others that have that socket give it. */
static long send_descriptor(int socket, int descriptor) {
  uint8_t byte = 0;
  union {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr header;
  } control;
  memset(&control, 0, sizeof control);
  struct iovec part = {&byte, sizeof byte};
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
  control.header.cmsg_level = SOL_SOCKET;
  control.header.cmsg_type = SCM_RIGHTS;
  control.header.cmsg_len = CMSG_LEN(sizeof descriptor);
  memcpy(CMSG_DATA(&control.header), &descriptor, sizeof descriptor);
  return sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/**
 * `connect(socket, bytes)`: one of two new connected sockets, whose kernel buffer has that many bytes; the other one is
 * sent by the given socket. Or minus an errno.
 */
static napi_value connect_by(napi_env env, napi_callback_info info) {
  int32_t numbers[2];
  int ends[2];
  read_arguments(env, info, numbers);
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0) return answer(env, -1);
  // Only root may exceed the system's limit.
  if (setsockopt(ends[0], SOL_SOCKET, SO_SNDBUFFORCE, &numbers[1], sizeof numbers[1]) < 0) {
    setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &numbers[1], sizeof numbers[1]);
  }
  long sent = send_descriptor(numbers[0], ends[1]);
  int error = errno;
  close(ends[1]);
  if (sent > 0) return answer(env, ends[0]);
  close(ends[0]);
  errno = error;
  return answer(env, -1);
}

static void export(napi_env env, napi_value exports, const char *name, napi_callback call) {
  napi_value function;
  if (napi_create_function(env, name, (size_t)-1, call, NULL, &function) == 0) {
    napi_set_named_property(env, exports, name, function);
  }
}

napi_value napi_register_module_v1(napi_env env, napi_value exports) {
  export(env, exports, "openProcess", open_process);
  export(env, exports, "take", take);
  export(env, exports, "connect", connect_by);
  return exports;
}
