/* A listener to NVTX, as small as one can be: it writes what it is told into a file.

   Loaded by NVTX through NVTX_INJECTION64_PATH; the file's name stands in NVTX_LISTENER_LOG. One
   line for each push (domain, category, number or "-", text) and each pop (domain), with tabs
   between; each line is written at once, so that a forked child's and other threads' do not mix.
   The declarations are those of NVTX 3's binary interface. */

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CALLBACKS = 1, CORE2 = 5 };
enum { PUSH = 4, POP = 5, NAME_CATEGORY = 8, REGISTER_STRING = 10, CREATE_DOMAIN = 12 };
enum { PAYLOAD_MODULE = 2, DOMAIN_IS_ENABLED = 7 };
enum { INT64 = 2 };

typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t colour_type;
    uint32_t colour;
    int32_t payload_type, reserved;
    union { int64_t number; double real; } payload;
    int32_t message_type;
    union { const char *text; } message;
} Attributes;

typedef void (*Function)(void);
typedef struct {
    size_t size;
    int (*functions)(int module, Function ***table, unsigned *count);
} Callbacks;
typedef struct { size_t id, count; intptr_t *slots; } Segment;
typedef struct {
    uint16_t version, size, module, compatible;
    size_t segment_count;
    Segment *segments;
} Extension;

static void put(const char *line) {
    const char *name = getenv("NVTX_LISTENER_LOG");
    int file = name ? open(name, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
    if (file >= 0) {
        if (write(file, line, strlen(line)) < 0) abort();
        close(file);
    }
}

/* A domain's handle is its name; the default domain has none. */
static const char *named(void *domain) { return domain ? (const char *)domain : "(default)"; }

static int push(void *domain, const Attributes *what) {
    char line[1024], number[32] = "-";
    if (what->payload_type == INT64) {
        snprintf(number, sizeof number, "%lld", (long long)what->payload.number);
    }
    snprintf(line, sizeof line, "push\t%ld\t%s\t%u\t%s\t%s\n", (long)getpid(), named(domain),
             what->category, number, what->message.text ? what->message.text : "");
    put(line);
    return 0;
}

static int pop(void *domain) {
    char line[256];
    snprintf(line, sizeof line, "pop\t%ld\t%s\n", (long)getpid(), named(domain));
    put(line);
    return 0;
}

static void name_category(void *domain, uint32_t number, const char *text) {
    char line[256];
    snprintf(line, sizeof line, "category\t%ld\t%s\t%u\t%s\n", (long)getpid(), named(domain),
             number, text);
    put(line);
}

static void *keep_string(void *domain, const char *text) {
    (void)domain;
    return strdup(text);
}

static void *create_domain(const char *name) { return strdup(name); }

static uint8_t is_enabled(void *domain) {
    (void)domain;
    return 1;
}

int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t)) {
    const Callbacks *callbacks = export_table(CALLBACKS);
    Function **table;
    unsigned count;
    if (!callbacks || !callbacks->functions(CORE2, &table, &count)) return 0;
    *table[PUSH] = (Function)push;
    *table[POP] = (Function)pop;
    *table[NAME_CATEGORY] = (Function)name_category;
    *table[REGISTER_STRING] = (Function)keep_string;
    *table[CREATE_DOMAIN] = (Function)create_domain;
    return 1;
}

int InitializeInjectionNvtxExtension(Extension *extension) {
    if (extension->module != PAYLOAD_MODULE) return 0;
    extension->segments[0].slots[DOMAIN_IS_ENABLED] = (intptr_t)is_enabled;
    return 1;
}
