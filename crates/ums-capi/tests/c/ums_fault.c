/*
 * A worker blocks in a page fault. The payload says that it was not a system call, and other
 * workers run. When the worker continues, its access has read the right value. The program resolves
 * the fault itself by userfaultfd(2), so that the worker certainly blocks.
 */
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kit.h"

enum { PAGES = 10, PAGE = 4096 };

static PUMS_COMPLETION_LIST list;
static worker faulter, other;
static queue ready;
static worker *running;
static int over, in_trap, in_call, faults;
static char *memory;
static volatile LONG done;

static DWORD WINAPI touches(LPVOID arg)
{
    DWORD right = 0;
    (void)arg;
    for (int page = 0; page < PAGES; page++)
        right += memory[page * PAGE] == 'a' + page;
    done = 1;
    return right;
}

static DWORD WINAPI computes(LPVOID arg)
{
    (void)arg;
    while (!done)
        UmsThreadYield(NULL);
    return 0;
}

static DWORD WINAPI answers(LPVOID arg)
{
    static char filled[PAGE] __attribute__((aligned(PAGE)));
    int uffd = (int)(LONG_PTR)arg;
    for (; faults < PAGES; faults++) {
        struct uffd_msg message;
        struct uffdio_copy copy = { 0, 0, PAGE, 0, 0 };
        CHECK(read(uffd, &message, sizeof message) == sizeof message);
        Sleep(3);
        filled[0] = (char)('a' + faults);
        copy.dst = message.arg.pagefault.address & ~(unsigned long long)(PAGE - 1);
        copy.src = (unsigned long long)(ULONG_PTR)filled;
        CHECK(ioctl(uffd, UFFDIO_COPY, &copy) == 0);
    }
    return 0;
}

static VOID NTAPI proc(UMS_SCHEDULER_REASON reason, ULONG_PTR payload, PVOID param)
{
    (void)param;
    if (reason == UmsSchedulerThreadYield)
        push(&ready, worker_of((PUMS_CONTEXT)payload));
    else if (reason == UmsSchedulerThreadBlocked && running == &faulter && !done) {
        if (payload & 1)
            in_call++;
        else
            in_trap++;
    }
    while (over < 2) {
        over += drain(list, ready.first || over == 2 ? 0 : 20000, &ready);
        running = pop(&ready);
        if (running) {
            ExecuteUmsThread(running->context);
            CHECK(GetLastError() == ERROR_RETRY);
            push(&ready, running);
        }
    }
}

int main(void)
{
    struct uffdio_api api = { UFFD_API, 0, 0 };
    struct uffdio_register range = { { 0, PAGES * PAGE }, UFFDIO_REGISTER_MODE_MISSING, 0 };
    int uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    if (uffd < 0) {
        puts("left out: userfaultfd is not allowed here");
        puts("ok");
        return 0;
    }
    CHECK(ioctl(uffd, UFFDIO_API, &api) == 0);
    memory = (char *)mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                          0);
    CHECK(memory != MAP_FAILED);
    range.range.start = (unsigned long long)(ULONG_PTR)memory;
    CHECK(ioctl(uffd, UFFDIO_REGISTER, &range) == 0);
    CHECK(CreateUmsCompletionList(&list));
    start_worker(&faulter, list, touches);
    start_worker(&other, list, computes);
    HANDLE helper = CreateThread(NULL, 0, answers, (LPVOID)(LONG_PTR)uffd, 0, NULL);
    CHECK(enter(list, proc, NULL));
    CHECK(WaitForSingleObject(helper, 20000) == WAIT_OBJECT_0 && CloseHandle(helper));
    CHECK(end_worker(&faulter) == PAGES && end_worker(&other) == 0);
    CHECK(DeleteUmsCompletionList(list));
    printf("%d blocks in traps, %d in calls\n", in_trap, in_call);
    CHECK(in_trap > PAGES / 2 && in_call == 0);
    puts("ok");
    return 0;
}
