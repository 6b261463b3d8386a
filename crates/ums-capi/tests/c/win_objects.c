/* Handles, events, semaphores, mutexes, threads, and waiting for them. */
#include <pthread.h>

#include "wcheck.h"

static HANDLE go, done_one, room;

static DWORD WINAPI returns(LPVOID arg)
{
    return (DWORD)(DWORD_PTR)arg;
}

static DWORD WINAPI exits(LPVOID arg)
{
    ExitThread((DWORD)(DWORD_PTR)arg);
}

static DWORD WINAPI leaves_by_pthread_exit(LPVOID arg)
{
    pthread_exit(arg);
}

static DWORD WINAPI terminates_itself(LPVOID arg)
{
    TerminateThread(GetCurrentThread(), (DWORD)(DWORD_PTR)arg);
    return 0;
}

static DWORD WINAPI waits_for_go(LPVOID arg)
{
    (void)arg;
    CHECK(WaitForSingleObject(go, INFINITE) == WAIT_OBJECT_0);
    CHECK(SetEvent(done_one));
    return 0;
}

static DWORD WINAPI takes_the_mutex(LPVOID mutex)
{
    FAILS(ERROR_NOT_OWNER, ReleaseMutex(mutex));
    if (WaitForSingleObject(mutex, 1) != WAIT_TIMEOUT)
        return 1;
    if (WaitForSingleObject(mutex, INFINITE) != WAIT_OBJECT_0)
        return 2;
    return ReleaseMutex(mutex) ? 0 : 3;
}

static void exit_codes(void)
{
    struct {
        LPTHREAD_START_ROUTINE start;
        DWORD code;
    } cases[] = { { returns, 7 },
                  { exits, 8 },
                  { terminates_itself, 9 },
                  { leaves_by_pthread_exit, 0 } };
    for (size_t i = 0; i < ARRAYSIZE(cases); i++) {
        DWORD id = 0, code = 0;
        HANDLE thread = CreateThread(NULL, 65536, cases[i].start,
                                     (LPVOID)(DWORD_PTR)cases[i].code, 0, &id);
        CHECK(thread != NULL && id != 0 && id != GetCurrentThreadId());
        CHECK(GetThreadId(thread) == id);
        CHECK(WaitForSingleObject(thread, INFINITE) == WAIT_OBJECT_0);
        CHECK(WaitForSingleObject(thread, 0) == WAIT_OBJECT_0); /* it stays signalled */
        CHECK(GetExitCodeThread(thread, &code) && code == cases[i].code);
        CHECK(CloseHandle(thread));
        FAILS(ERROR_INVALID_HANDLE, CloseHandle(thread));
    }
}

static void suspended(void)
{
    DWORD code = 0;
    HANDLE thread = CreateThread(NULL, 0, returns, (LPVOID)1, CREATE_SUSPENDED, NULL);
    CHECK(thread != NULL);
    CHECK(WaitForSingleObject(thread, 20) == WAIT_TIMEOUT);
    CHECK(GetExitCodeThread(thread, &code) && code == STILL_ACTIVE);
    CHECK(SuspendThread(thread) == 1);
    CHECK(ResumeThread(thread) == 2);
    CHECK(WaitForSingleObject(thread, 20) == WAIT_TIMEOUT);
    FAILS(ERROR_NOT_SUPPORTED, TerminateThread(thread, 1));
    CHECK(ResumeThread(thread) == 1);
    CHECK(WaitForSingleObject(thread, INFINITE) == WAIT_OBJECT_0);
    CHECK(ResumeThread(thread) == 0);
    CHECK(CloseHandle(thread));
}

static void events(void)
{
    HANDLE threads[3], manual = CreateEvent(NULL, TRUE, FALSE, NULL);
    go = CreateEvent(NULL, FALSE, FALSE, NULL);
    done_one = CreateEventW(NULL, FALSE, FALSE, NULL);
    CHECK(go && done_one && manual);
    FAILS(ERROR_NOT_SUPPORTED, CreateEventA(NULL, FALSE, FALSE, "a name") != NULL);
    for (int i = 0; i < 3; i++)
        CHECK((threads[i] = CreateThread(NULL, 0, waits_for_go, NULL, 0, NULL)) != NULL);
    CHECK(WaitForMultipleObjects(3, threads, FALSE, 20) == WAIT_TIMEOUT);
    for (int i = 0; i < 3; i++) {
        /* An automatic event: each time it is set, one waiter continues. */
        CHECK(SetEvent(go));
        CHECK(WaitForSingleObject(done_one, INFINITE) == WAIT_OBJECT_0);
        CHECK(WaitForSingleObject(done_one, 5) == WAIT_TIMEOUT);
    }
    CHECK(WaitForMultipleObjects(3, threads, TRUE, INFINITE) == WAIT_OBJECT_0);
    for (int i = 0; i < 3; i++)
        CHECK(CloseHandle(threads[i]));

    CHECK(SetEvent(go) && SetEvent(go)); /* set twice is set once */
    CHECK(WaitForSingleObject(go, 0) == WAIT_OBJECT_0);
    CHECK(WaitForSingleObject(go, 0) == WAIT_TIMEOUT);
    CHECK(SetEvent(manual));
    CHECK(WaitForSingleObject(manual, 0) == WAIT_OBJECT_0);
    CHECK(WaitForSingleObject(manual, 0) == WAIT_OBJECT_0);

    /* Waits for the first object that is signalled, or for all together. If all are not
     * signalled, none is taken. */
    HANDLE both[2] = { go, manual };
    CHECK(WaitForMultipleObjects(2, both, FALSE, 0) == WAIT_OBJECT_0 + 1);
    CHECK(SetEvent(go));
    CHECK(WaitForMultipleObjects(2, both, FALSE, 0) == WAIT_OBJECT_0);
    CHECK(SetEvent(go) && ResetEvent(manual));
    CHECK(WaitForMultipleObjects(2, both, TRUE, 5) == WAIT_TIMEOUT);
    CHECK(WaitForSingleObject(go, 0) == WAIT_OBJECT_0); /* it was not taken */
    CHECK(CloseHandle(manual) && CloseHandle(go) && CloseHandle(done_one));
    FAILS(ERROR_INVALID_HANDLE, SetEvent(manual));
}

static void semaphores_and_mutexes(void)
{
    LONG before = -1;
    DWORD code = 9;
    room = CreateSemaphore(NULL, 2, 3, NULL);
    CHECK(room != NULL);
    CHECK(WaitForSingleObject(room, 0) == WAIT_OBJECT_0);
    CHECK(WaitForSingleObject(room, 0) == WAIT_OBJECT_0);
    CHECK(WaitForSingleObject(room, 5) == WAIT_TIMEOUT);
    CHECK(ReleaseSemaphore(room, 3, &before) && before == 0);
    FAILS(ERROR_TOO_MANY_POSTS, ReleaseSemaphore(room, 1, NULL));
    FAILS(ERROR_INVALID_PARAMETER, ReleaseSemaphore(room, 0, NULL));
    FAILS(ERROR_INVALID_PARAMETER, CreateSemaphore(NULL, 4, 3, NULL) != NULL);
    FAILS(ERROR_INVALID_HANDLE, SetEvent(room));
    CHECK(CloseHandle(room));

    HANDLE mutex = CreateMutex(NULL, TRUE, NULL);
    CHECK(mutex != NULL);
    CHECK(WaitForSingleObject(mutex, 0) == WAIT_OBJECT_0); /* its owner may take it again */
    CHECK(ReleaseMutex(mutex));
    HANDLE thread = CreateThread(NULL, 0, takes_the_mutex, mutex, 0, NULL);
    Sleep(30);
    CHECK(ReleaseMutex(mutex));
    FAILS(ERROR_NOT_OWNER, ReleaseMutex(mutex));
    CHECK(WaitForSingleObject(thread, INFINITE) == WAIT_OBJECT_0);
    CHECK(GetExitCodeThread(thread, &code) && code == 0);
    CHECK(CloseHandle(thread) && CloseHandle(mutex));
}

static void misuse(void)
{
    HANDLE many[65] = { NULL };
    FAILS(ERROR_INVALID_HANDLE, WaitForSingleObject(NULL, 0) != WAIT_FAILED);
    FAILS(ERROR_INVALID_HANDLE, WaitForSingleObject((HANDLE)0x12345678, 0) != WAIT_FAILED);
    FAILS(ERROR_INVALID_HANDLE, WaitForSingleObject(GetCurrentProcess(), 0) != WAIT_FAILED);
    FAILS(ERROR_INVALID_PARAMETER, WaitForMultipleObjects(0, many, FALSE, 0) != WAIT_FAILED);
    FAILS(ERROR_INVALID_PARAMETER, WaitForMultipleObjects(65, many, FALSE, 0) != WAIT_FAILED);
    FAILS(ERROR_INVALID_PARAMETER, WaitForMultipleObjects(1, NULL, FALSE, 0) != WAIT_FAILED);
    FAILS(ERROR_INVALID_PARAMETER, CreateThread(NULL, 0, NULL, NULL, 0, NULL) != NULL);
    FAILS(ERROR_INVALID_PARAMETER, CreateThread(NULL, 0, returns, NULL, 0x800, NULL) != NULL);
    FAILS(ERROR_INVALID_HANDLE, CreateRemoteThread(NULL, NULL, 0, returns, NULL, 0, NULL) != NULL);
    FAILS(ERROR_INVALID_HANDLE, ResumeThread(NULL) != (DWORD)-1);
    FAILS(ERROR_INVALID_HANDLE, CloseHandle(NULL));
    FAILS(ERROR_INVALID_HANDLE, CloseHandle((HANDLE)4));
    CHECK(CloseHandle(GetCurrentThread()));
}

int main(void)
{
    exit_codes();
    suspended();
    events();
    semaphores_and_mutexes();
    misuse();
    puts("ok");
    return 0;
}
