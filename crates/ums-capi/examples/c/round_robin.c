/*
 * A round-robin scheduler: workers take turns on one processor. A worker that sleeps is skipped.
 *
 *     cc -I<prefix>/include/ums/windows round_robin.c -lums -pthread && ./a.out
 *
 * The entry point is called with a reason: at the start, when the running worker yields, and when
 * it blocks in the kernel (or has ended). Each time the entry point chooses the next worker and
 * executes it; ExecuteUmsThread does not return. The entry point must not allocate and must not
 * take locks, because a stopped worker may hold them. So the queue is an array.
 */
#include <stdio.h>
#include <stdlib.h>
#include <windows.h>

#define WORKERS 4
#define ROUNDS 3

static PUMS_COMPLETION_LIST completed;
static PUMS_CONTEXT ready[WORKERS];
static int first, count, ended;
static PUMS_CONTEXT running;

static void fail(const char *what)
{
    printf("%s failed: error %u\n", what, (unsigned)GetLastError());
    exit(1);
}

static void make_ready(PUMS_CONTEXT worker)
{
    ready[(first + count++) % WORKERS] = worker;
}

static BOOL has_ended(PUMS_CONTEXT worker)
{
    BOOLEAN yes = FALSE;
    if (!QueryUmsThreadInformation(worker, UmsThreadIsTerminated, &yes, sizeof yes, NULL))
        fail("QueryUmsThreadInformation");
    return yes;
}

/* Takes everything from the completion list before a worker runs. */
static void take_completed(DWORD wait)
{
    PUMS_CONTEXT item = NULL;
    DequeueUmsCompletionListItems(completed, wait, &item); /* NULL if none came in time */
    while (item != NULL) {
        PUMS_CONTEXT next = GetNextUmsListItem(item);
        if (has_ended(item))
            ended++;
        else
            make_ready(item);
        item = next;
    }
}

static VOID NTAPI scheduler(UMS_SCHEDULER_REASON reason, ULONG_PTR payload, PVOID param)
{
    switch (reason) {
    case UmsSchedulerStartup:
        printf("the scheduler starts: %s\n", (const char *)param);
        break;
    case UmsSchedulerThreadYield:
        make_ready((PUMS_CONTEXT)payload);
        break;
    case UmsSchedulerThreadBlocked:
        /* The call does not say which worker has blocked: it is `running`. It will appear on the
         * list again. */
        break;
    }
    running = NULL;
    while (ended < WORKERS) {
        take_completed(count > 0 ? 0 : INFINITE);
        if (count > 0) {
            running = ready[first];
            first = (first + 1) % WORKERS;
            count--;
            ExecuteUmsThread(running); /* returns only if it fails */
            if (GetLastError() != ERROR_RETRY)
                fail("ExecuteUmsThread");
            make_ready(running);
        }
    }
    /* Returning leaves scheduling mode. */
}

static DWORD WINAPI work(LPVOID arg)
{
    int number = (int)(ULONG_PTR)arg;
    for (int round = 1; round <= ROUNDS; round++) {
        printf("worker %d, round %d\n", number, round);
        if (number == 0)
            Sleep(1); /* blocks, so the other workers continue */
        else
            UmsThreadYield(NULL);
    }
    return 0;
}

static HANDLE start(int number, PUMS_CONTEXT *context)
{
    UMS_CREATE_THREAD_ATTRIBUTES worker = { UMS_VERSION, NULL, completed };
    SIZE_T size = 0;
    HANDLE thread;
    LPPROC_THREAD_ATTRIBUTE_LIST attributes;
    InitializeProcThreadAttributeList(NULL, 1, 0, &size);
    attributes = (LPPROC_THREAD_ATTRIBUTE_LIST)malloc(size);
    if (!CreateUmsThreadContext(context))
        fail("CreateUmsThreadContext");
    worker.UmsContext = *context;
    if (!InitializeProcThreadAttributeList(attributes, 1, 0, &size) ||
        !UpdateProcThreadAttribute(attributes, 0, PROC_THREAD_ATTRIBUTE_UMS_THREAD, &worker,
                                   sizeof worker, NULL, NULL))
        fail("the attribute list");
    thread = CreateRemoteThreadEx(GetCurrentProcess(), NULL, 0, work, (LPVOID)(ULONG_PTR)number, 0,
                                  attributes, NULL);
    if (thread == NULL)
        fail("CreateRemoteThreadEx");
    DeleteProcThreadAttributeList(attributes);
    free(attributes);
    return thread;
}

int main(void)
{
    UMS_SCHEDULER_STARTUP_INFO info = { UMS_VERSION, NULL, scheduler, (PVOID) "round robin" };
    PUMS_CONTEXT contexts[WORKERS];
    HANDLE threads[WORKERS];

    if (!CreateUmsCompletionList(&completed))
        fail("CreateUmsCompletionList");
    for (int i = 0; i < WORKERS; i++)
        threads[i] = start(i, &contexts[i]);
    info.CompletionList = completed;
    if (!EnterUmsSchedulingMode(&info))
        fail("EnterUmsSchedulingMode");
    for (int i = 0; i < WORKERS; i++) {
        WaitForSingleObject(threads[i], INFINITE);
        CloseHandle(threads[i]);
        DeleteUmsThreadContext(contexts[i]);
    }
    DeleteUmsCompletionList(completed);
    printf("all %d workers have ended\n", WORKERS);
    return 0;
}
