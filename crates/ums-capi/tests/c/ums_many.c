/* Many workers, some hundreds at a time, are created, run, end and are deleted. Nothing is left
 * behind. */
#include <dirent.h>
#include <unistd.h>

#include "kit.h"

static PUMS_COMPLETION_LIST list;
static queue ready;
static int over, batch;

static DWORD WINAPI work(LPVOID arg)
{
    (void)arg;
    CHECK(UmsThreadYield(NULL));
    return 1;
}

static VOID NTAPI proc(UMS_SCHEDULER_REASON reason, ULONG_PTR payload, PVOID param)
{
    (void)param;
    if (reason == UmsSchedulerThreadYield)
        push(&ready, worker_of((PUMS_CONTEXT)payload));
    while (over < batch) {
        over += drain(list, ready.first ? 0 : 20000, &ready);
        worker *w = pop(&ready);
        if (w) {
            ExecuteUmsThread(w->context);
            CHECK(GetLastError() == ERROR_RETRY);
            push(&ready, w);
        }
    }
}

static int entries(const char *folder)
{
    DIR *dir = opendir(folder);
    int count = 0;
    CHECK(dir != NULL);
    while (readdir(dir))
        count++;
    closedir(dir);
    return count;
}

static void run_batch(worker *workers)
{
    over = 0;
    for (int i = 0; i < batch; i++)
        start_worker(&workers[i], list, work);
    CHECK(enter(list, proc, NULL));
    for (int i = 0; i < batch; i++)
        CHECK(end_worker(&workers[i]) == 1);
}

int main(int argc, char **argv)
{
    int total = argc > 1 ? atoi(argv[1]) : 600;
    int fds = 0, threads = 0;
    batch = argc > 2 ? atoi(argv[2]) : 200;
    worker *workers = (worker *)calloc((size_t)batch, sizeof *workers);
    CHECK(workers && CreateUmsCompletionList(&list));
    for (int done = 0; done < total; done += batch) {
        run_batch(workers);
        if (done == 0) {
            fds = entries("/proc/self/fd");
            threads = entries("/proc/self/task");
        }
    }
    /* A thread that has ended may still be listed for a moment. */
    for (int i = 0; i < 200 && entries("/proc/self/task") > threads; i++)
        Sleep(10);
    printf("descriptors %d -> %d, threads %d -> %d\n", fds, entries("/proc/self/fd"), threads,
           entries("/proc/self/task"));
    CHECK(entries("/proc/self/fd") <= fds + 2 && entries("/proc/self/task") <= threads);
    CHECK(DeleteUmsCompletionList(list));
    free(workers);
    puts("ok");
    return 0;
}
