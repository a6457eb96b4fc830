// An addon of Node that writes base64 into a buffer, of which Node makes a string first, which is copied twice, and that
// reads base64 with padding inside, which Node does not.
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tmmintrin.h>

// What is used of Node-API, whose binary interface is stable: its headers are not where every Node is.
typedef struct napi_env__ *napi_env;
typedef struct napi_value__ *napi_value;
typedef struct napi_callback_info__ *napi_callback_info;
typedef napi_value (*napi_callback)(napi_env env, napi_callback_info info);
enum { NAPI_UINT8_ARRAY = 1 };
int napi_create_function(napi_env env, const char *name, size_t length, napi_callback call, void *data, napi_value *result);
int napi_create_int64(napi_env env, int64_t value, napi_value *result);
int napi_get_cb_info(napi_env env, napi_callback_info info, size_t *count, napi_value *values, napi_value *self, void **data);
int napi_get_typedarray_info(napi_env env, napi_value value, int *type, size_t *length, void **data, napi_value *buffer, size_t *offset);
int napi_get_value_int64(napi_env env, napi_value value, int64_t *result);
int napi_set_named_property(napi_env env, napi_value object, const char *name, napi_value value);

static const char ALPHABET[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/** Encodes 12 bytes at a time, and reads 16. @return how many bytes it has encoded. */
__attribute__((target("ssse3"))) static size_t encode_vectors(uint8_t *target, const uint8_t *source, size_t length) {
  // Each group of three bytes as four: b a c b.
  const __m128i spread = _mm_setr_epi8(1, 0, 2, 1, 4, 3, 5, 4, 7, 6, 8, 7, 10, 9, 11, 10);
  // What a sextet's class adds to it: 0 to 10 by its distance from 51, 13 for the capital letters.
  const __m128i shifts = _mm_setr_epi8('a' - 26, '0' - 52, '0' - 52, '0' - 52, '0' - 52, '0' - 52, '0' - 52, '0' - 52,
                                       '0' - 52, '0' - 52, '0' - 52, '+' - 62, '/' - 63, 'A', 0, 0);
  size_t done = 0;
  for (; length - done >= 16; done += 12, target += 16) {
    __m128i bytes = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(source + done)), spread);
    // Multiplications shift the sextets of each half by different widths.
    __m128i odd = _mm_mulhi_epu16(_mm_and_si128(bytes, _mm_set1_epi32(0x0fc0fc00)), _mm_set1_epi32(0x04000040));
    __m128i even = _mm_mullo_epi16(_mm_and_si128(bytes, _mm_set1_epi32(0x003f03f0)), _mm_set1_epi32(0x01000010));
    __m128i sextets = _mm_or_si128(odd, even);
    __m128i class = _mm_subs_epu8(sextets, _mm_set1_epi8(51));
    __m128i is_capital = _mm_cmpgt_epi8(_mm_set1_epi8(26), sextets);
    class = _mm_or_si128(class, _mm_and_si128(is_capital, _mm_set1_epi8(13)));
    _mm_storeu_si128((__m128i *)target, _mm_add_epi8(sextets, _mm_shuffle_epi8(shifts, class)));
  }
  return done;
}

static void encode(uint8_t *target, const uint8_t *source, size_t length) {
  size_t at = __builtin_cpu_supports("ssse3") && length >= 16 ? encode_vectors(target, source, length) : 0;
  for (target += at / 3 * 4; at < length; at += 3, target += 4) {
    size_t left = length - at;
    uint32_t group = (uint32_t)source[at] << 16;
    if (left > 1) group |= (uint32_t)source[at + 1] << 8;
    if (left > 2) group |= source[at + 2];
    for (unsigned index = 0; index < 4; index++)
      target[index] = index <= left ? (uint8_t)ALPHABET[group >> (18 - 6 * index) & 63] : '=';
  }
}

/** Values of the digits of both alphabets; what else is in a text is one of these. */
enum { PADDING = 64, SPACE, INVALID };
static uint8_t digits[256];

static void fill_digits(void) {
  for (size_t byte = 0; byte < sizeof digits; byte++) digits[byte] = INVALID;
  for (uint8_t value = 0; value < 64; value++) digits[(uint8_t)ALPHABET[value]] = value;
  digits['-'] = digits['+'];
  digits['_'] = digits['/'];
  digits['='] = PADDING;
  digits[' '] = digits['\t'] = digits['\r'] = digits['\n'] = SPACE;
}

/** @return how many bytes there are, -1 for another text and for more bytes than there is room for. */
static int64_t decode(uint8_t *target, size_t room, const uint8_t *text, size_t length) {
  size_t written = 0;
  uint32_t bits = 0;
  unsigned count = 0;
  for (size_t at = 0; at < length; at++) {
    uint8_t value = digits[text[at]];
    if (value < PADDING) {
      bits = bits << 6 | value;
      count = (count + 1) & 3;
      // Each digit but the first of four completes a byte.
      if (count == 1) continue;
      if (written == room) return -1;
      target[written++] = (uint8_t)(bits >> (count == 0 ? 0 : 8 - 2 * count));
    } else if (value == PADDING) {
      count = 0;
    } else if (value == INVALID) {
      return -1;
    }
  }
  return count == 1 ? -1 : (int64_t)written;
}

static bool read_bytes(napi_env env, napi_value value, uint8_t **bytes, size_t *length) {
  int type = -1;
  return napi_get_typedarray_info(env, value, &type, length, (void **)bytes, NULL, NULL) == 0 && type == NAPI_UINT8_ARRAY;
}

/** `write(target, at, source)`: where the text ends in the target, or -1 when it does not fit or a value is another. */
static napi_value write_base64(napi_env env, napi_callback_info info) {
  napi_value values[3], result = NULL;
  size_t count = 3, room, length;
  uint8_t *target, *source;
  int64_t at, end = -1;
  bool is_read = napi_get_cb_info(env, info, &count, values, NULL, NULL) == 0 && count >= 3 &&
                 read_bytes(env, values[0], &target, &room) && napi_get_value_int64(env, values[1], &at) == 0 &&
                 read_bytes(env, values[2], &source, &length);
  if (is_read && at >= 0 && (size_t)at <= room && length / 3 <= SIZE_MAX / 8) {
    size_t needed = (length + 2) / 3 * 4;
    if (needed <= room - (size_t)at) {
      encode(target + at, source, length);
      end = at + (int64_t)needed;
    }
  }
  napi_create_int64(env, end, &result);
  return result;
}

/** `read(target, text)`: how many bytes it has written, or -1 as `decode` and where a value is another. */
static napi_value read_base64(napi_env env, napi_callback_info info) {
  napi_value values[2], result = NULL;
  size_t count = 2, room, length;
  uint8_t *target, *text;
  int64_t written = -1;
  bool is_read = napi_get_cb_info(env, info, &count, values, NULL, NULL) == 0 && count >= 2 &&
                 read_bytes(env, values[0], &target, &room) && read_bytes(env, values[1], &text, &length);
  if (is_read) written = decode(target, room, text, length);
  napi_create_int64(env, written, &result);
  return result;
}

napi_value napi_register_module_v1(napi_env env, napi_value exports) {
  napi_value function;
  fill_digits();
  if (napi_create_function(env, "read", (size_t)-1, read_base64, NULL, &function) == 0) {
    napi_set_named_property(env, exports, "read", function);
  }
  if (napi_create_function(env, "write", (size_t)-1, write_base64, NULL, &function) == 0) {
    napi_set_named_property(env, exports, "write", function);
  }
  return exports;
}
