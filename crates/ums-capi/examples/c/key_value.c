/*
 * A key-value server in plain blocking code, with a task for each connection.
 *
 *     cc -Wall key_value.c $(pkg-config --cflags --libs ums) -o key_value
 *     ./key_value [PORT]
 *
 * A client sends lines: `set KEY VALUE`, `get KEY`, `delete KEY`. Each is answered with a line: the
 * value, `ok`, `none` or `error`. SIGTERM and Ctrl-C stop accepting, and give connections two
 * seconds.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <ums.h>
#include <unistd.h>

#define SECOND UINT64_C(1000000000)

enum { LINE = 1024, BUCKETS = 4096 };

struct entry {
    struct entry *next;
    char *value;
    char *key;
};

static struct entry *buckets[BUCKETS];
static ums_mutex *lock; /* guards the buckets and their entries */

/* Returns the place of the key's entry, or where it would be. The caller holds the lock. */
static struct entry **find(const char *key)
{
    unsigned hash = 5381;
    for (const char *c = key; *c; c++)
        hash = hash * 33 + (unsigned char)*c;
    struct entry **at = &buckets[hash % BUCKETS];
    while (*at && strcmp((*at)->key, key) != 0)
        at = &(*at)->next;
    return at;
}

static const char *set(struct entry **at, const char *key, const char *value)
{
    char *copy = strdup(value);
    if (copy && !*at) {
        *at = calloc(1, sizeof **at);
        if (*at && !((*at)->key = strdup(key))) {
            free(*at);
            *at = NULL;
        }
    }
    if (!copy || !*at) {
        free(copy);
        return "error";
    }
    free((*at)->value);
    (*at)->value = copy;
    return "ok";
}

static const char *delete(struct entry **at)
{
    struct entry *entry = *at;
    *at = entry->next;
    free(entry->value);
    free(entry->key);
    free(entry);
    return "ok";
}

/* Carries out a line, and writes the answer. Returns a negative errno if the task is cancelled. */
static int carry_out(char *line, char answer[LINE + 2])
{
    char *rest = NULL, *name = strtok_r(line, " ", &rest), *key = strtok_r(NULL, " ", &rest);
    const char *said = "error";
    int failed = ums_mutex_lock(lock, UMS_FOREVER);
    if (failed)
        return failed;
    if (key) {
        struct entry **at = find(key);
        if (strcmp(name, "set") == 0)
            said = set(at, key, rest);
        else if (!*at)
            said = "none";
        else if (strcmp(name, "get") == 0)
            said = (*at)->value;
        else if (strcmp(name, "delete") == 0)
            said = delete(at);
    }
    snprintf(answer, LINE + 2, "%s\n", said);
    return ums_mutex_unlock(lock);
}

static int send_all(int fd, const char *text)
{
    size_t left = strlen(text);
    while (left > 0) {
        int64_t n = ums_write(fd, text, left, UMS_CURRENT, 10 * SECOND);
        if (n < 0)
            return (int)n;
        text += n;
        left -= (size_t)n;
    }
    return 0;
}

/* Serves one client until it leaves, is silent for a minute, or the server stops. */
static void *connection(void *arg)
{
    int fd = (int)(intptr_t)arg;
    char input[LINE], answer[LINE + 2];
    size_t have = 0;
    int failed = 0;
    while (!failed && have < sizeof input) { /* a full buffer without an end of a line: too long */
        int64_t n = ums_read(fd, input + have, sizeof input - have, UMS_CURRENT, 60 * SECOND);
        if (n <= 0)
            break;
        have += (size_t)n;
        char *begin = input, *end;
        while (!failed && (end = memchr(begin, '\n', have)) != NULL) {
            *end = '\0';
            failed = carry_out(begin, answer);
            if (!failed)
                failed = send_all(fd, answer);
            have -= (size_t)(end + 1 - begin);
            begin = end + 1;
        }
        memmove(input, begin, have);
    }
    close(fd);
    return NULL;
}

/* Accepts until the task is cancelled, which ums_node_drain does. */
static void *serve(void *arg)
{
    int listener = (int)(intptr_t)arg, fd;
    while ((fd = ums_accept(listener, UMS_FOREVER)) != -ECANCELED) {
        if (fd < 0) { /* out of descriptors, for instance: the client waits in the queue */
            fprintf(stderr, "accepting: %s\n", ums_last_error());
            ums_sleep(SECOND / 100);
        } else if (ums_spawn(connection, (void *)(intptr_t)fd, NULL) < 0) {
            close(fd);
        }
    }
    close(listener);
    return NULL;
}

static int listen_on(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    socklen_t len = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), yes = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(fd, (struct sockaddr *)&address, len) < 0 || listen(fd, 1024) < 0)
        return -1;
    getsockname(fd, (struct sockaddr *)&address, &len);
    printf("listening on port %d\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

int main(int argc, char **argv)
{
    ums_node *node;
    sigset_t stop;
    int number;
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&stop);
    sigaddset(&stop, SIGINT);
    sigaddset(&stop, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &stop, NULL); /* first: the node's threads inherit it */

    int listener = listen_on(argc > 1 ? atoi(argv[1]) : 7878);
    if (listener < 0)
        return perror("listening"), 1;
    if (ums_mutex_new(&lock) < 0 || ums_node_new(NULL, &node) < 0 ||
        ums_node_spawn(node, serve, (void *)(intptr_t)listener, NULL) < 0)
        return fprintf(stderr, "%s\n", ums_last_error()), 1;

    sigwait(&stop, &number);
    ums_shutdown_report report;
    ums_node_drain(node, 2 * SECOND, &report);
    printf("ended; %zu tasks were cancelled\n", report.cancelled);
    ums_mutex_free(lock);
    return ums_node_free(node);
}
