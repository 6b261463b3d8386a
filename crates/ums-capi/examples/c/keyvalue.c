/*
 * A key-value server over TCP. A connection is served by a function that reads and writes as if it
 * had a thread of its own; while it waits, its scheduler runs others.
 *
 *   keyvalue [PORT [IDLE_MS [thread|fiber|context]]]
 *
 *   SET key value     -> OK
 *   GET key           -> VALUE value, or NONE
 *   DEL key           -> OK, or NONE
 *   QUIT              -> BYE, and the connection is closed
 *
 * PORT 0, the default, is a free one. A connection that sends nothing for IDLE_MS (30000) is closed.
 * SIGTERM or SIGINT ends the server in order: it accepts no more connections, and the open ones get
 * five seconds to finish what they do.
 */
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <ums.h>

#define MS 1000000ull
#define WRITE_LIMIT (10000 * MS)
#define PART_LIMIT (500 * MS)

enum { BUCKETS = 4096, LINE_MAX_BYTES = 1024 };

/* --- The store: a hash table. Readers share the lock, a writer has it alone. ------------------- */

struct entry {
    struct entry *next;
    char *value;
    char key[];
};

static struct entry *buckets[BUCKETS];
static ums_rwlock *lock;

/* Returns the place of the pointer to this key's entry, which is NULL if there is none. */
static struct entry **find(const char *key)
{
    unsigned hash = 2166136261u; /* FNV-1a */
    for (const char *c = key; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 16777619u;
    struct entry **at = &buckets[hash % BUCKETS];
    while (*at && strcmp((*at)->key, key) != 0)
        at = &(*at)->next;
    return at;
}

static void set(const char *key, const char *value, char *answer)
{
    char *copy = strdup(value);
    struct entry *made = malloc(sizeof *made + strlen(key) + 1);
    int is_set = 0;
    if (copy && made && ums_rwlock_write(lock, UMS_FOREVER) == 0) {
        struct entry **at = find(key);
        char *old = NULL;
        if (!*at) {
            made->next = NULL;
            made->value = NULL;
            strcpy(made->key, key);
            *at = made;
            made = NULL;
        }
        old = (*at)->value;
        (*at)->value = copy;
        copy = old;
        is_set = 1;
        ums_rwlock_unlock(lock);
    }
    free(copy);
    free(made);
    strcpy(answer, is_set ? "OK\n" : "ERROR the value was not stored\n");
}

static void get(const char *key, char *answer)
{
    struct entry *found;
    if (ums_rwlock_read(lock, UMS_FOREVER) != 0) {
        strcpy(answer, "ERROR the server stops\n");
        return;
    }
    found = *find(key);
    if (found)
        sprintf(answer, "VALUE %s\n", found->value);
    else
        strcpy(answer, "NONE\n");
    ums_rwlock_unlock(lock);
}

static void del(const char *key, char *answer)
{
    struct entry **at, *found = NULL;
    if (ums_rwlock_write(lock, UMS_FOREVER) != 0) {
        strcpy(answer, "ERROR the server stops\n");
        return;
    }
    at = find(key);
    found = *at;
    if (found)
        *at = found->next;
    ums_rwlock_unlock(lock);
    strcpy(answer, found ? "OK\n" : "NONE\n");
    if (found) {
        free(found->value);
        free(found);
    }
}

/* --- A connection ------------------------------------------------------------------------------ */

static uint64_t idle_limit = 30000 * MS;
static ums_event *stopping;

/* Writes all of the text. Returns 0, or a negative errno. */
static int64_t say(int fd, const char *text)
{
    size_t length = strlen(text);
    while (length > 0) {
        int64_t written = ums_write(fd, text, length, UMS_CURRENT, WRITE_LIMIT);
        if (written < 0)
            return written;
        text += written;
        length -= (size_t)written;
    }
    return 0;
}

/* Answers one line. Returns false if the connection ends with it. */
static bool answer_line(int fd, char *line)
{
    char answer[LINE_MAX_BYTES + 16] = "ERROR unknown command\n";
    char *rest = NULL;
    const char *command = strtok_r(line, " \r", &rest);
    const char *key = command ? strtok_r(NULL, " \r", &rest) : NULL;
    if (command && strcmp(command, "QUIT") == 0)
        return say(fd, "BYE\n"), false;
    if (command && key) {
        const char *value = strtok_r(NULL, "\r", &rest);
        if (strcmp(command, "SET") == 0 && value)
            set(key, value, answer);
        else if (strcmp(command, "GET") == 0 && !value)
            get(key, answer);
        else if (strcmp(command, "DEL") == 0 && !value)
            del(key, answer);
    }
    return say(fd, answer) == 0;
}

/* Waits until there is input, and reads it. Returns the number of bytes, or at most 0 if the
 * connection ends. */
static ssize_t read_more(int fd, char *buffer, size_t room)
{
    ums_arm arms[2] = {
        { .kind = UMS_ARM_READABLE, .fd = fd },
        { .kind = UMS_ARM_EVENT, .object = stopping },
    };
    switch (ums_select(arms, 2, UMS_SELECT_BIASED, idle_limit)) {
    case 0:
        return read(fd, buffer, room); /* there is input, so this does not wait */
    case 1:
        say(fd, "BYE the server stops\n");
        return 0;
    case -ETIMEDOUT:
        say(fd, "BYE this connection was idle\n");
        return 0;
    default:
        return -1;
    }
}

/* Answers lines until the connection ends. */
static void answer_lines(int fd)
{
    char buffer[LINE_MAX_BYTES];
    size_t length = 0;
    for (;;) {
        ssize_t more = read_more(fd, buffer + length, sizeof buffer - length);
        if (more <= 0)
            return;
        length += (size_t)more;
        char *start = buffer, *end;
        while ((end = memchr(start, '\n', length - (size_t)(start - buffer))) != NULL) {
            *end = 0;
            if (!answer_line(fd, start))
                return;
            start = end + 1;
        }
        length -= (size_t)(start - buffer);
        memmove(buffer, start, length);
        if (length == sizeof buffer) {
            say(fd, "ERROR the line is too long\n");
            return;
        }
        if (ums_event_is_set(stopping)) { /* a client that never pauses */
            say(fd, "BYE the server stops\n");
            return;
        }
    }
}

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000 * MS + (uint64_t)time.tv_nsec;
}

/* The server calls this for each connection, and closes it afterwards. */
static void converse(void *arg, int fd)
{
    char unread[LINE_MAX_BYTES];
    uint64_t end, at;
    (void)arg;
    answer_lines(fd);
    /* If there is unread input when the socket is closed, the client may lose the last answer. */
    shutdown(fd, SHUT_WR);
    end = now() + PART_LIMIT;
    while ((at = now()) < end && ums_read(fd, unread, sizeof unread, UMS_CURRENT, end - at) > 0) {
    }
}

/* --- The server -------------------------------------------------------------------------------- */

/* Ends the program unless the call of the library has succeeded. */
static void must(int code, const char *what)
{
    if (code >= 0)
        return;
    fprintf(stderr, "%s: %s\n", what, ums_last_error());
    exit(1);
}

static int listen_on(int port)
{
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_port = htons((uint16_t)port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0 ||
        bind(fd, (struct sockaddr *)&address, sizeof address) < 0 || listen(fd, 1024) < 0 ||
        getsockname(fd, (struct sockaddr *)&address, &length) < 0) {
        perror("listening");
        exit(1);
    }
    printf("listening on 127.0.0.1:%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

static void free_store(void)
{
    for (int i = 0; i < BUCKETS; i++)
        while (buckets[i]) {
            struct entry *next = buckets[i]->next;
            free(buckets[i]->value);
            free(buckets[i]);
            buckets[i] = next;
        }
}

int main(int argc, char **argv)
{
    const char *kind = argc > 3 ? argv[3] : "thread";
    ums_options options;
    ums_shutdown_report report;
    ums_server *server;
    ums_node *node;
    sigset_t ends;
    int signal_number, fd;

    if (argc > 2)
        idle_limit = strtoull(argv[2], NULL, 10) * MS;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    if (strcmp(kind, "fiber") == 0)
        options.worker_kind = UMS_WORKERS_FIBER;
    if (strcmp(kind, "context") == 0)
        options.worker_kind = UMS_WORKERS_CONTEXT;

    /* Blocked before the node starts its threads, so that only sigwait receives them. */
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);
    signal(SIGPIPE, SIG_IGN); /* a write to a client that has gone fails instead */

    must(ums_node_new(&options, &node), "starting");
    must(ums_rwlock_new(&lock), "a lock");
    must(ums_event_new(true, false, &stopping), "an event");
    fd = listen_on(argc > 1 ? atoi(argv[1]) : 0);
    must(ums_serve(node, fd, NULL, converse, NULL, &server), "serving");
    close(fd); /* the server has a duplicate */

    sigwait(&ends, &signal_number);
    must(ums_event_set(stopping), "stopping"); /* wakes the connections that are idle */
    must(ums_node_drain(node, 5000 * MS, &report), "stopping");
    printf("stopped: %zu connections were cut off\n", report.cancelled);
    if (report.left > 0)
        return 1; /* their functions still use the store */
    must(ums_server_free(server), "the server");
    must(ums_node_free(node), "the node");
    must(ums_event_free(stopping), "the event");
    must(ums_rwlock_free(lock), "the lock");
    free_store();
    return 0;
}
