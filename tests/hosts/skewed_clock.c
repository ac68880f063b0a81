/* A host whose clock is wrong by VRAMPOOL_TEST_SKEW_S seconds: preloaded into its processes. Only the calendar's clock
   is wrong; clocks that measure how long something takes are right, as on such a host. */
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static int (*real)(clockid_t, struct timespec *);
static long skew_s;

__attribute__((constructor)) static void begin(void) {
  const char *text = getenv("VRAMPOOL_TEST_SKEW_S");
  skew_s = text ? atol(text) : 0;
  real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
}

__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, struct timespec *now) {
  if (!real) begin();
  int result = real(clock, now);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += skew_s;
  return result;
}

__attribute__((visibility("default"))) int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec found;
  (void)zone;
  if (clock_gettime(CLOCK_REALTIME, &found) != 0) return -1;
  now->tv_sec = found.tv_sec;
  now->tv_usec = found.tv_nsec / 1000;
  return 0;
}

__attribute__((visibility("default"))) time_t time(time_t *where) {
  struct timespec found;
  if (clock_gettime(CLOCK_REALTIME, &found) != 0) return (time_t)-1;
  if (where) *where = found.tv_sec;
  return found.tv_sec;
}
