/*
 * A worker that blocks in read() on a pipe beside one that computes, on one processor.
 *
 *     cc -I<prefix>/include/ums/windows pipe_and_compute.c -lums -pthread && ./a.out
 *
 * The reader has no code for its scheduler: it calls read(). When the reader has blocked, the
 * scheduler is called and executes the other worker. A plain thread then writes. The reader does
 * not continue immediately: it appears on the completion list, and continues when the scheduler
 * executes it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <windows.h>

static PUMS_COMPLETION_LIST completed;
static PUMS_CONTEXT queue[2];
static int queued, ended, blocked_in_a_call;
static int pipe_ends[2];
static volatile LONG have_read;
static LARGE_INTEGER began, frequency;

static void fail(const char *what)
{
    printf("%s failed: error %u\n", what, (unsigned)GetLastError());
    exit(1);
}

static double ms(void)
{
    LARGE_INTEGER now;
    QueryPerformanceCounter(&now);
    return (double)(now.QuadPart - began.QuadPart) * 1000 / (double)frequency.QuadPart;
}

static VOID NTAPI scheduler(UMS_SCHEDULER_REASON reason, ULONG_PTR payload, PVOID param)
{
    (void)param;
    if (reason == UmsSchedulerThreadYield)
        queue[queued++] = (PUMS_CONTEXT)payload;
    if (reason == UmsSchedulerThreadBlocked && (payload & 1))
        blocked_in_a_call++;
    while (ended < 2) {
        PUMS_CONTEXT item = NULL;
        DequeueUmsCompletionListItems(completed, queued ? 0 : INFINITE, &item);
        while (item != NULL) {
            PUMS_CONTEXT next = GetNextUmsListItem(item);
            BOOLEAN is_over = FALSE;
            QueryUmsThreadInformation(item, UmsThreadIsTerminated, &is_over, sizeof is_over, NULL);
            if (is_over)
                ended++;
            else
                queue[queued++] = item;
            item = next;
        }
        if (queued) {
            /* The worker that was queued last: a reader that has woken goes before the worker
             * that computes. */
            PUMS_CONTEXT next = queue[--queued];
            ExecuteUmsThread(next);
            if (GetLastError() != ERROR_RETRY)
                fail("ExecuteUmsThread");
            queue[queued++] = next;
        }
    }
}

static DWORD WINAPI reader(LPVOID arg)
{
    char letter = 0;
    (void)arg;
    if (read(pipe_ends[0], &letter, 1) != 1)
        return 1;
    printf("%6.2f ms  the reader has '%c'\n", ms(), letter);
    InterlockedExchange(&have_read, 1);
    return 0;
}

static DWORD WINAPI computer(LPVOID arg)
{
    LONGLONG steps = 0;
    (void)arg;
    printf("%6.2f ms  the other worker computes\n", ms());
    while (!have_read) {
        for (volatile int i = 0; i < 20000; i++)
            steps++;
        UmsThreadYield(NULL); /* lets the scheduler look for workers that have become ready */
    }
    printf("%6.2f ms  the other worker has computed %s\n", ms(), steps > 0 ? "meanwhile" : "nothing");
    return 0;
}

static DWORD WINAPI writer(LPVOID arg)
{
    (void)arg;
    Sleep(20);
    printf("%6.2f ms  a plain thread writes\n", ms());
    return write(pipe_ends[1], "x", 1) == 1 ? 0 : 1;
}

static HANDLE start(LPTHREAD_START_ROUTINE routine, PUMS_CONTEXT *context)
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
    thread =
        CreateRemoteThreadEx(GetCurrentProcess(), NULL, 0, routine, NULL, 0, attributes, NULL);
    if (thread == NULL)
        fail("CreateRemoteThreadEx");
    DeleteProcThreadAttributeList(attributes);
    free(attributes);
    return thread;
}

int main(void)
{
    UMS_SCHEDULER_STARTUP_INFO info = { UMS_VERSION, NULL, scheduler, NULL };
    PUMS_CONTEXT contexts[2];
    HANDLE threads[3];

    QueryPerformanceFrequency(&frequency);
    if (pipe(pipe_ends) != 0 || !CreateUmsCompletionList(&completed))
        fail("setting up");
    threads[0] = start(computer, &contexts[0]);
    threads[1] = start(reader, &contexts[1]);
    QueryPerformanceCounter(&began);
    threads[2] = CreateThread(NULL, 0, writer, NULL, 0, NULL);
    info.CompletionList = completed;
    if (!EnterUmsSchedulingMode(&info))
        fail("EnterUmsSchedulingMode");
    WaitForMultipleObjects(3, threads, TRUE, INFINITE);
    for (int i = 0; i < 3; i++)
        CloseHandle(threads[i]);
    for (int i = 0; i < 2; i++)
        DeleteUmsThreadContext(contexts[i]);
    DeleteUmsCompletionList(completed);
    printf("the scheduler was told %s that a worker blocked in a system call\n",
           blocked_in_a_call > 0 ? "at least once" : "never");
    return 0;
}
