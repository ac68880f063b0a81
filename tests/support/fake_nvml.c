/* A libnvidia-ml.so.1 for tests. What it tells is read afresh at every call from the file that $FAKE_NVML_STATE names,
 * and from every file in the folder of the same name with ".d" at its end. One record a line, bytes in decimal:
 *
 *   card INDEX UUID TOTAL RESERVED NAME...     RESERVED is the driver's own part
 *   mig INDEX UUID TOTAL GI CI NAME...         an instance of that card; its other records name it by its UUID
 *   migmode INDEX                              MIG is on, with or without instances
 *   used WHICH BYTES                           by programs that no process list names
 *   proc WHICH PID BYTES                       counted while PID lives; BYTES -1: in the list without a figure
 *   ghost WHICH PID BYTES                      the same, but counted whether PID lives or not
 *   unlisted WHICH                             the process list of this device is empty
 *   linger WHICH SECONDS                       memory of a dead PID stays in use for so long; -1: for ever
 *   busy WHICH PERCENT    sm WHICH PERCENT     utilisation; without "sm" GPM is not supported
 *   fail WHICH CODE CALL                       CALL (memory, memory2, list, busy, gpm, handle, any) answers CODE
 *   hang WHICH CALL                            CALL does not come back while this record is there
 *
 * WHICH is an index, a UUID, or "*" for all; "init" stands for the start of the library.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
enum { MAX_DEVICES = 32, MAX_RECORDS = 512, MAX_DEAD = 1024, UUID_LENGTH = 80 };
enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, WRONG_VERSION = 25 };
typedef unsigned long long u64;

struct device {
    int present, card, gi, ci, mig_on; /* card: index of the physical card; gi -1: this is one itself */
    u64 total, reserved;
    char uuid[UUID_LENGTH], name[96];
};
struct record {
    char kind[16], which[UUID_LENGTH], call[16];
    long long first, second;
};
struct process_info { unsigned pid; u64 used; unsigned gi, ci; };
struct memory_v1 { u64 total, free, used; };
struct memory_v2 { unsigned version; u64 total, reserved, free, used; };
struct gpm_metric { unsigned id; int answer; double value; const char *names[3]; };
struct gpm_question { unsigned version, count; void *sample1, *sample2; struct gpm_metric metrics[1]; };
struct gpm_support { unsigned version, supported; };

/* Each thread has its own copy: one may hang while another asks. A handle holds a place in the list of devices, so it
 * stays good when the state is read again, and how often the library was started: one of an earlier start is refused,
 * as the real library may do. Cards come before instances. */
static _Thread_local struct device devices[MAX_DEVICES];
static _Thread_local struct record records[MAX_RECORDS];
static _Thread_local int device_count, record_count;
static _Thread_local struct { unsigned pid; double since; } dead[MAX_DEAD];
static _Thread_local int dead_count;
static int started, generation;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void read_line(const char *line) {
    struct record r = {0};
    struct device d = {.present = 1, .gi = -1, .ci = -1};
    if (sscanf(line, "card %d %79s %llu %llu %95[^\n]", &d.card, d.uuid, &d.total, &d.reserved, d.name) == 5 ||
        sscanf(line, "mig %d %79s %llu %d %d %95[^\n]", &d.card, d.uuid, &d.total, &d.gi, &d.ci, d.name) == 6) {
        if (device_count < MAX_DEVICES) devices[device_count++] = d;
    } else if (sscanf(line, "fail %79s %lld %15s", r.which, &r.first, r.call) == 3) {
        strcpy(r.kind, "fail");
    } else if (sscanf(line, "hang %79s %15s", r.which, r.call) == 2) {
        strcpy(r.kind, "hang");
    } else if (sscanf(line, "%15s %79s %lld %lld", r.kind, r.which, &r.first, &r.second) < 2) {
        return;
    }
    if (r.kind[0] && record_count < MAX_RECORDS) records[record_count++] = r;
}

static void read_file(const char *path) {
    char line[512];
    FILE *file = fopen(path, "r");
    if (!file) return;
    while (fgets(line, sizeof line, file)) read_line(line);
    fclose(file);
}

static void read_state(void) {
    const char *path = getenv("FAKE_NVML_STATE");
    char name[4096];
    memset(devices, 0, sizeof devices);
    device_count = record_count = 0;
    if (!path) return;
    read_file(path);
    snprintf(name, sizeof name, "%s.d", path);
    DIR *folder = opendir(name);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        if (entry->d_name[0] == '.') continue;
        snprintf(name, sizeof name, "%s.d/%s", path, entry->d_name);
        read_file(name);
    }
    if (folder) closedir(folder);
}

static int means(const struct record *r, const struct device *d) {
    char *end;
    if (!d) return !strcmp(r->which, "init");
    if (!strcmp(r->which, "*") || !strcmp(r->which, d->uuid)) return 1;
    long index = strtol(r->which, &end, 10);
    return *r->which && !*end && d->gi < 0 && index == d->card;
}

static const struct record *find(const char *kind, const struct device *d, const char *call) {
    for (int i = 0; i < record_count; i++) {
        const struct record *r = &records[i];
        if (strcmp(r->kind, kind) || !means(r, d)) continue;
        if (!call || !strcmp(r->call, call) || !strcmp(r->call, "any")) return r;
    }
    return NULL;
}

/* Wait while a record says that this call hangs, then return what it shall answer. */
static int answer(const struct device *d, const char *call) {
    while (find("hang", d, call)) {
        struct timespec pause = {0, 5000000};
        nanosleep(&pause, NULL);
        read_state();
    }
    const struct record *r = find("fail", d, call);
    return r ? (int)r->first : SUCCESS;
}

static int enter(void *handle, const char *call, struct device **out) {
    if (!started) return UNINITIALIZED;
    read_state();
    uintptr_t place = (uintptr_t)handle % MAX_DEVICES;
    if ((uintptr_t)handle / MAX_DEVICES != (uintptr_t)generation || !devices[place].present) return INVALID;
    *out = &devices[place];
    return answer(*out, call);
}

/* A process that waits to be reaped has given its memory back already. */
static int lives(unsigned pid) {
    char path[64], state = 'Z';
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 'Z';
    fclose(file);
    return state != 'Z' && state != 'X';
}

static int counts(const struct record *r, const struct device *d) {
    unsigned pid = (unsigned)r->first;
    int i;
    if (!strcmp(r->kind, "ghost") || lives(pid)) return 1;
    const struct record *linger = find("linger", d, NULL);
    if (!linger) return 0;
    for (i = 0; i < dead_count && dead[i].pid != pid; i++) {}
    if (i == dead_count && dead_count < MAX_DEAD) {
        dead[dead_count].pid = pid;
        dead[dead_count++].since = now();
    }
    return linger->first < 0 || (i < dead_count && now() - dead[i].since < (double)linger->first);
}

static int is_process(const struct record *r, const struct device *d) {
    return (!strcmp(r->kind, "proc") || !strcmp(r->kind, "ghost")) && means(r, d) && counts(r, d);
}

static u64 used(const struct device *d) {
    u64 sum = 0, most = d->total - d->reserved;
    for (int i = 0; i < record_count; i++) {
        const struct record *r = &records[i];
        if (!strcmp(r->kind, "used") && means(r, d)) sum += (u64)r->first;
        else if (is_process(r, d) && r->second > 0) sum += (u64)r->second;
    }
    return sum < most ? sum : most;
}

static void *handle_of(int place) { return (void *)((uintptr_t)generation * MAX_DEVICES + (uintptr_t)place); }

static int text(char *out, unsigned length, const char *value) {
    if (strlen(value) + 1 > length) return TOO_SMALL;
    strcpy(out, value);
    return SUCCESS;
}

EXPORT int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    read_state();
    int code = answer(NULL, "any");
    if (!code && !started++) generation++;
    return code;
}
EXPORT int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
EXPORT int nvmlShutdown(void) {
    if (!started) return UNINITIALIZED;
    started--;
    return SUCCESS;
}
EXPORT int nvmlSystemGetDriverVersion(char *out, unsigned length) {
    return started ? text(out, length, "999.99.fake") : UNINITIALIZED;
}
EXPORT int nvmlDeviceGetCount_v2(unsigned *count) {
    if (!started) return UNINITIALIZED;
    read_state();
    *count = 0;
    for (int i = 0; i < device_count; i++) *count += devices[i].gi < 0;
    return SUCCESS;
}
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    if (!started) return UNINITIALIZED;
    read_state();
    for (int i = 0; i < device_count; i++)
        if (devices[i].gi < 0 && devices[i].card == (int)index) {
            *out = handle_of(i);
            return answer(&devices[i], "handle");
        }
    return INVALID;
}
EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **out) {
    if (!started) return UNINITIALIZED;
    read_state();
    for (int i = 0; i < device_count; i++)
        if (!strcmp(devices[i].uuid, uuid)) {
            *out = handle_of(i);
            return answer(&devices[i], "handle");
        }
    return NOT_FOUND;
}
EXPORT int nvmlDeviceGetName(void *handle, char *out, unsigned length) {
    struct device *d;
    int code = enter(handle, "name", &d);
    return code ? code : text(out, length, d->name);
}
EXPORT int nvmlDeviceGetUUID(void *handle, char *out, unsigned length) {
    struct device *d;
    int code = enter(handle, "uuid", &d);
    return code ? code : text(out, length, d->uuid);
}
EXPORT int nvmlDeviceGetMemoryInfo(void *handle, struct memory_v1 *out) {
    struct device *d;
    int code = enter(handle, "memory", &d);
    if (code) return code;
    out->total = d->total;
    out->used = used(d) + d->reserved; /* the old call counts the driver's part as used */
    out->free = d->total - out->used;
    return SUCCESS;
}
EXPORT int nvmlDeviceGetMemoryInfo_v2(void *handle, struct memory_v2 *out) {
    struct device *d;
    int code = enter(handle, "memory", &d);
    if (!code) code = answer(d, "memory2");
    if (code) return code;
    if (out->version != (sizeof *out | 2u << 24)) return WRONG_VERSION;
    out->total = d->total;
    out->reserved = d->reserved;
    out->used = used(d);
    out->free = d->total - d->reserved - out->used;
    return SUCCESS;
}
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, struct process_info *out) {
    struct device *d;
    int code = enter(handle, "list", &d);
    unsigned room = *count, found = 0;
    if (code) return code;
    for (int i = 0; i < record_count && !find("unlisted", d, NULL); i++) {
        const struct record *r = &records[i];
        if (!is_process(r, d)) continue;
        if (out && found < room) {
            u64 bytes = r->second < 0 ? ~0ULL : (u64)r->second;
            out[found] = (struct process_info){(unsigned)r->first, bytes, ~0u, ~0u};
        }
        found++;
    }
    *count = found;
    return found > room ? TOO_SMALL : SUCCESS;
}
EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, struct process_info *out) {
    struct device *d;
    (void)out;
    *count = 0;
    return enter(handle, "list", &d);
}
EXPORT int nvmlDeviceGetUtilizationRates(void *handle, unsigned out[2]) {
    struct device *d;
    int code = enter(handle, "busy", &d);
    if (code) return code;
    const struct record *r = find("busy", d, NULL);
    if (d->gi >= 0) return NOT_SUPPORTED; /* as the real one for a MIG instance */
    out[0] = r ? (unsigned)r->first : 0;
    out[1] = 0;
    return SUCCESS;
}
EXPORT int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    struct device *d;
    int code = enter(handle, "mig", &d);
    if (code) return code;
    *current = find("migmode", d, NULL) != NULL;
    for (int i = 0; i < device_count; i++) *current |= devices[i].gi >= 0 && devices[i].card == d->card;
    *pending = *current;
    return SUCCESS;
}
EXPORT int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) {
    struct device *d;
    *count = 7;
    return enter(handle, "mig", &d);
}
EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **out) {
    struct device *d;
    int code = enter(handle, "mig", &d);
    if (code) return code;
    for (int i = 0; i < device_count; i++)
        if (devices[i].gi >= 0 && devices[i].card == d->card && index-- == 0) {
            *out = handle_of(i);
            return SUCCESS;
        }
    return NOT_FOUND;
}
EXPORT int nvmlDeviceGetGpuInstanceId(void *handle, unsigned *out) {
    struct device *d;
    int code = enter(handle, "mig", &d);
    if (!code) *out = (unsigned)d->gi;
    return code;
}
EXPORT int nvmlDeviceGetComputeInstanceId(void *handle, unsigned *out) {
    struct device *d;
    int code = enter(handle, "mig", &d);
    if (!code) *out = (unsigned)d->ci;
    return code;
}
EXPORT int nvmlGpmQueryDeviceSupport(void *handle, struct gpm_support *out) {
    struct device *d;
    int code = enter(handle, "gpm", &d);
    if (!code) out->supported = find("sm", d, NULL) != NULL;
    return code;
}
EXPORT int nvmlGpmSampleAlloc(void **out) {
    *out = calloc(1, sizeof(double));
    return SUCCESS;
}
EXPORT int nvmlGpmSampleFree(void *sample) {
    free(sample);
    return SUCCESS;
}
EXPORT int nvmlGpmSampleGet(void *handle, double *sample) {
    struct device *d;
    int code = enter(handle, "gpm", &d);
    if (code) return code;
    const struct record *r = find("sm", d, NULL);
    if (!r) return NOT_SUPPORTED;
    *sample = (double)r->first;
    return SUCCESS;
}
EXPORT int nvmlGpmMigSampleGet(void *handle, unsigned gi, double *sample) {
    (void)gi;
    return nvmlGpmSampleGet(handle, sample);
}
EXPORT int nvmlGpmMetricsGet(struct gpm_question *question) {
    if (question->version != 1 || question->count != 1 || question->metrics[0].id != 2) return INVALID;
    if (!question->sample1 || !question->sample2 || question->sample1 == question->sample2) return INVALID;
    question->metrics[0].answer = SUCCESS;
    question->metrics[0].value = *(double *)question->sample2; /* the newer sample; a mix-up would show */
    return SUCCESS;
}
