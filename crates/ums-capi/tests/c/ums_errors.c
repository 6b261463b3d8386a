/* Every error that a UMS function can return: bad input, wrong callers, contexts that cannot run.
 */
#include "kit.h"

static PUMS_COMPLETION_LIST list, other_list;
static worker first, second;
static queue ready;
static int over, stage;
static HANDLE other_go, other_done;
static volatile LONG other_error;
static PUMS_CONTEXT scheduler_context;

static DWORD WINAPI yields_twice(LPVOID arg)
{
    (void)arg;
    FAILS(ERROR_NOT_SUPPORTED, ExecuteUmsThread(second.context)); /* a worker is no scheduler */
    UMS_SCHEDULER_STARTUP_INFO info = { UMS_VERSION, list, NULL, NULL };
    FAILS(ERROR_INVALID_PARAMETER, EnterUmsSchedulingMode(&info));
    CHECK(UmsThreadYield((PVOID)1));
    CHECK(UmsThreadYield((PVOID)2));
    return 0;
}

static DWORD WINAPI ends(LPVOID arg)
{
    (void)arg;
    return 0;
}

static VOID NTAPI never(UMS_SCHEDULER_REASON reason, ULONG_PTR payload, PVOID param)
{
    (void)reason;
    (void)payload;
    (void)param;
    CHECK(!"called");
}

static void information(PUMS_CONTEXT context)
{
    struct {
        UMS_THREAD_INFO_CLASS kind;
        ULONG size;
    } classes[] = { { UmsThreadUserContext, 8 },
                    { UmsThreadTeb, 8 },
                    { UmsThreadIsSuspended, 1 },
                    { UmsThreadIsTerminated, 1 },
                    { UmsThreadCounts, sizeof(UMS_THREAD_COUNTS) } };
    BYTE buffer[40];
    ULONG length;
    PVOID value = &classes;
    for (size_t i = 0; i < ARRAYSIZE(classes); i++) {
        for (ULONG size = 0; size <= sizeof buffer; size++) {
            length = 99;
            if (size == classes[i].size) {
                CHECK(QueryUmsThreadInformation(context, classes[i].kind, buffer, size, &length));
                CHECK(length == size);
                CHECK(QueryUmsThreadInformation(context, classes[i].kind, buffer, size, NULL));
            } else {
                FAILS(ERROR_INFO_LENGTH_MISMATCH,
                      QueryUmsThreadInformation(context, classes[i].kind, buffer, size, &length));
                CHECK(length == 0);
            }
        }
        FAILS(ERROR_INVALID_PARAMETER,
              QueryUmsThreadInformation(context, classes[i].kind, NULL, classes[i].size, NULL));
    }
    FAILS(ERROR_NOT_SUPPORTED, QueryUmsThreadInformation(context, UmsThreadPriority, buffer, 4, NULL));
    FAILS(ERROR_NOT_SUPPORTED, QueryUmsThreadInformation(context, UmsThreadAffinity, buffer, 8, NULL));
    FAILS(ERROR_INVALID_INFO_CLASS,
          QueryUmsThreadInformation(context, UmsThreadInvalidInfoClass, buffer, 8, NULL));
    FAILS(ERROR_INVALID_INFO_CLASS,
          QueryUmsThreadInformation(context, UmsThreadMaxInfoClass, buffer, 8, NULL));

    PVOID before = NULL, after = NULL;
    CHECK(QueryUmsThreadInformation(context, UmsThreadUserContext, &before, 8, NULL));
    CHECK(SetUmsThreadInformation(context, UmsThreadUserContext, &value, 8));
    CHECK(QueryUmsThreadInformation(context, UmsThreadUserContext, &after, 8, NULL));
    CHECK(after == value);
    CHECK(SetUmsThreadInformation(context, UmsThreadUserContext, &before, 8));
    FAILS(ERROR_INFO_LENGTH_MISMATCH, SetUmsThreadInformation(context, UmsThreadUserContext, &value, 7));
    FAILS(ERROR_NOT_SUPPORTED, SetUmsThreadInformation(context, UmsThreadIsTerminated, buffer, 1));
    FAILS(ERROR_NOT_SUPPORTED, SetUmsThreadInformation(context, UmsThreadPriority, buffer, 4));
    FAILS(ERROR_INVALID_INFO_CLASS, SetUmsThreadInformation(context, (UMS_THREAD_INFO_CLASS)77, buffer, 8));
}

/* Creating a worker needs the right version, a context and a list. */
static void creating(PUMS_CONTEXT context)
{
    BYTE memory[256] __attribute__((aligned(16)));
    LPPROC_THREAD_ATTRIBUTE_LIST attributes = (LPPROC_THREAD_ATTRIBUTE_LIST)memory;
    UMS_CREATE_THREAD_ATTRIBUTES wrong[] = { { 0x0101, context, list },
                                             { UMS_VERSION, NULL, list },
                                             { UMS_VERSION, memory, list },
                                             { UMS_VERSION, context, NULL },
                                             { UMS_VERSION, context, memory } };
    for (size_t i = 0; i < ARRAYSIZE(wrong); i++) {
        SIZE_T size = sizeof memory;
        CHECK(InitializeProcThreadAttributeList(attributes, 1, 0, &size));
        CHECK(UpdateProcThreadAttribute(attributes, 0, PROC_THREAD_ATTRIBUTE_UMS_THREAD, &wrong[i],
                                        sizeof wrong[i], NULL, NULL));
        FAILS(ERROR_INVALID_PARAMETER, CreateRemoteThreadEx(GetCurrentProcess(), NULL, 0, ends, NULL,
                                                            0, attributes, NULL) != NULL);
        DeleteProcThreadAttributeList(attributes);
    }
}

/* A plain thread is neither a scheduler nor a worker. Pointers are checked. */
static void outside(void)
{
    PUMS_CONTEXT context = NULL, item = &item;
    HANDLE event;
    int nothing = 0;
    UMS_SCHEDULER_STARTUP_INFO info = { UMS_VERSION, list, never, NULL };

    FAILS(ERROR_INVALID_PARAMETER, CreateUmsCompletionList(NULL));
    FAILS(ERROR_INVALID_PARAMETER, CreateUmsThreadContext(NULL));
    FAILS(ERROR_INVALID_PARAMETER, DeleteUmsCompletionList(NULL));
    FAILS(ERROR_INVALID_PARAMETER, DeleteUmsCompletionList(&nothing));
    FAILS(ERROR_INVALID_PARAMETER, DeleteUmsThreadContext(NULL));
    FAILS(ERROR_INVALID_PARAMETER, GetUmsCompletionListEvent(NULL, &event));
    FAILS(ERROR_INVALID_PARAMETER, GetUmsCompletionListEvent(list, NULL));
    FAILS(ERROR_INVALID_PARAMETER, DequeueUmsCompletionListItems(NULL, 0, &item));
    FAILS(ERROR_INVALID_PARAMETER, DequeueUmsCompletionListItems(list, 0, NULL));
    FAILS(ERROR_INVALID_PARAMETER, GetNextUmsListItem(NULL) != NULL);
    FAILS(ERROR_INVALID_PARAMETER, GetNextUmsListItem(&nothing) != NULL);
    for (DWORD ms = 0; ms <= 50; ms += 50) {
        LARGE_INTEGER frequency, before, after;
        QueryPerformanceFrequency(&frequency);
        QueryPerformanceCounter(&before);
        item = &item;
        SetLastError(12345);
        /* As on Windows, the end of the time is a success, with no list. */
        CHECK(DequeueUmsCompletionListItems(list, ms, &item) && item == NULL);
        CHECK(GetLastError() == 12345);
        QueryPerformanceCounter(&after);
        CHECK((after.QuadPart - before.QuadPart) * 1000 / frequency.QuadPart >= ms);
    }
    CHECK(GetCurrentUmsThread() == NULL);
    FAILS(ERROR_INVALID_PARAMETER, UmsThreadYield(NULL));
    FAILS(ERROR_INVALID_PARAMETER, ExecuteUmsThread(NULL));
    FAILS(ERROR_INVALID_PARAMETER, EnterUmsSchedulingMode(NULL));
    info.UmsVersion = 0x0101;
    FAILS(ERROR_INVALID_PARAMETER, EnterUmsSchedulingMode(&info));
    info.UmsVersion = UMS_VERSION;
    info.SchedulerProc = NULL;
    FAILS(ERROR_INVALID_PARAMETER, EnterUmsSchedulingMode(&info));
    info.SchedulerProc = never;
    info.CompletionList = &nothing;
    FAILS(ERROR_INVALID_PARAMETER, EnterUmsSchedulingMode(&info));

    CHECK(CreateUmsThreadContext(&context));
    creating(context);
    FAILS(ERROR_NOT_SUPPORTED, ExecuteUmsThread(context)); /* the caller is no scheduler */
    information(context);
    CHECK(DeleteUmsThreadContext(context));
    FAILS(ERROR_INVALID_PARAMETER, DeleteUmsThreadContext(context));
    FAILS(ERROR_INVALID_PARAMETER, QueryUmsThreadInformation(context, UmsThreadTeb, &item, 8, NULL));
    FAILS(ERROR_INVALID_PARAMETER, ExecuteUmsThread(context));

    UMS_SYSTEM_THREAD_INFORMATION what = { 0, { { 0, 0 } } };
    FAILS(ERROR_INVALID_PARAMETER, GetUmsSystemThreadInformation(GetCurrentThread(), NULL));
    FAILS(ERROR_INVALID_PARAMETER, GetUmsSystemThreadInformation(GetCurrentThread(), &what));
    what.UmsVersion = UMS_VERSION;
    FAILS(ERROR_INVALID_HANDLE, GetUmsSystemThreadInformation(NULL, &what));
    CHECK(GetUmsSystemThreadInformation(GetCurrentThread(), &what) && what.ThreadUmsFlags == 0);
}

static void system_information(void)
{
    UMS_SYSTEM_THREAD_INFORMATION what = { UMS_VERSION, { { 0, 0 } } };
    CHECK(GetUmsSystemThreadInformation(GetCurrentThread(), &what));
    CHECK(what.IsUmsSchedulerThread == 1 && what.IsUmsWorkerThread == 0);
    CHECK(GetUmsSystemThreadInformation(first.thread, &what));
    CHECK(what.IsUmsSchedulerThread == 0 && what.IsUmsWorkerThread == 1);
}

/* Another scheduler tries to execute a worker that is running here. */
static VOID NTAPI other_proc(UMS_SCHEDULER_REASON reason, ULONG_PTR payload, PVOID param)
{
    (void)payload;
    (void)param;
    CHECK(reason == UmsSchedulerStartup);
    CHECK(WaitForSingleObject(other_go, 30000) == WAIT_OBJECT_0);
    CHECK(!ExecuteUmsThread(first.context));
    other_error = (LONG)GetLastError();
    CHECK(SetEvent(other_done));
}

static DWORD WINAPI other_scheduler(LPVOID arg)
{
    (void)arg;
    CHECK(enter(other_list, other_proc, NULL));
    return 0;
}

static DWORD WINAPI is_tried_by_another(LPVOID arg)
{
    (void)arg;
    CHECK(SetEvent(other_go));
    while (!other_error)
        YieldProcessor(); /* the worker keeps running */
    return 0;
}

static VOID NTAPI proc(UMS_SCHEDULER_REASON reason, ULONG_PTR payload, PVOID param)
{
    if (reason == UmsSchedulerStartup) {
        CHECK(param == &stage && payload == 0);
        scheduler_context = GetCurrentUmsThread();
        CHECK(scheduler_context != NULL);
        FAILS(ERROR_INVALID_PARAMETER, ExecuteUmsThread(NULL));
        FAILS(ERROR_INVALID_PARAMETER, ExecuteUmsThread(scheduler_context));
        FAILS(ERROR_INVALID_PARAMETER, ExecuteUmsThread(&stage));
        FAILS(ERROR_INVALID_PARAMETER, UmsThreadYield(NULL)); /* a scheduler is not a worker */
        FAILS(ERROR_NOT_SUPPORTED, enter(list, never, NULL)); /* nested */
        PUMS_CONTEXT empty;
        CHECK(CreateUmsThreadContext(&empty));
        FAILS(ERROR_INVALID_PARAMETER, ExecuteUmsThread(empty)); /* the context has no worker */
        CHECK(DeleteUmsThreadContext(empty));
        system_information();
        information(first.context);
        FAILS(ERROR_BUSY, DeleteUmsCompletionList(list)); /* the list has workers */
        FAILS(ERROR_INVALID_PARAMETER, DeleteUmsThreadContext(first.context));
        PUMS_CONTEXT chain = NULL, rest;
        CHECK(DequeueUmsCompletionListItems(list, 0, &chain) && chain != NULL);
        FAILS(ERROR_RETRY, ExecuteUmsThread(chain)); /* the context is linked in a chain, so it is locked */
        rest = GetNextUmsListItem(chain);
        CHECK(rest != NULL && GetNextUmsListItem(chain) == NULL); /* the second call returns NULL */
        CHECK(GetNextUmsListItem(rest) == NULL);
        push(&ready, worker_of(chain));
        push(&ready, worker_of(rest));
        CHECK(SuspendThread(first.thread) == 0);
    } else if (reason == UmsSchedulerThreadYield) {
        CHECK((ULONG_PTR)param == (ULONG_PTR)++stage);
        push(&ready, worker_of((PUMS_CONTEXT)payload));
        CHECK(payload == (ULONG_PTR)first.context);
    } else {
        CHECK(param == NULL);
    }
    for (;;) {
        worker *w;
        over += drain(list, 0, &ready);
        if (over == 2)
            return;
        w = pop(&ready);
        if (w == NULL) {
            over += drain(list, 1000, &ready);
            continue;
        }
        ExecuteUmsThread(w->context);
        DWORD error = GetLastError();
        if (error == ERROR_RETRY) {
            push(&ready, w);
            continue;
        }
        CHECK(w == &first && error == ERROR_INVALID_PARAMETER);
        BOOLEAN suspended = 0;
        CHECK(QueryUmsThreadInformation(w->context, UmsThreadIsSuspended, &suspended, 1, NULL));
        CHECK(suspended);
        CHECK(ResumeThread(first.thread) == 1);
        CHECK(QueryUmsThreadInformation(w->context, UmsThreadIsSuspended, &suspended, 1, NULL));
        CHECK(!suspended);
        push(&ready, w);
    }
}

static VOID NTAPI run_one(UMS_SCHEDULER_REASON reason, ULONG_PTR payload, PVOID param)
{
    (void)payload;
    (void)reason;
    (void)param;
    for (over = 0; over == 0;) {
        over += drain(list, 20, &ready);
        worker *w = pop(&ready);
        if (w) {
            ExecuteUmsThread(w->context);
            CHECK(GetLastError() == ERROR_RETRY);
            push(&ready, w);
        }
    }
    /* A terminated worker cannot be executed. */
    FAILS(ERROR_INVALID_PARAMETER, ExecuteUmsThread(first.context));
}

int main(void)
{
    CHECK(CreateUmsCompletionList(&list) && CreateUmsCompletionList(&other_list));
    outside();
    start_worker(&first, list, yields_twice);
    start_worker(&second, list, ends);
    CHECK(enter(list, proc, &stage));
    CHECK(stage == 2 && GetCurrentUmsThread() == NULL);
    CHECK(end_worker(&first) == 0 && end_worker(&second) == 0);

    other_go = CreateEvent(NULL, FALSE, FALSE, NULL);
    other_done = CreateEvent(NULL, FALSE, FALSE, NULL);
    start_worker(&first, list, is_tried_by_another);
    HANDLE thread = CreateThread(NULL, 0, other_scheduler, NULL, 0, NULL);
    CHECK(enter(list, run_one, NULL));
    CHECK(WaitForSingleObject(thread, 30000) == WAIT_OBJECT_0);
    CHECK(other_error == ERROR_INTERNAL_ERROR);
    CHECK(end_worker(&first) == 0);

    CHECK(DeleteUmsCompletionList(list));
    FAILS(ERROR_INVALID_PARAMETER, DeleteUmsCompletionList(list));
    CHECK(DeleteUmsCompletionList(other_list));
    puts("ok");
    return 0;
}
