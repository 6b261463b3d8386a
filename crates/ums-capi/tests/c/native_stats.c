/* Statistics as text and JSON. */
#include "check.h"

static void *nothing(void *arg)
{
    ums_yield();
    return arg;
}

int main(int argc, char **argv)
{
    ums_node *node = node_of(argc, argv, 2);
    char *text = NULL, *json = NULL;

    IS(0, ums_node_run(node, nothing, NULL, NULL));
    IS(0, ums_node_stats_text(node, &text));
    const char *rows[] = { "Scheduler ID",   "  num users",   "  num runnable",
                           "  num workers",  "  idle workers", "  work queued",
                           "  cntxt switches", "  cntxt switches(idle)" };
    const char *at = text;
    for (int scheduler = 0; scheduler < 2; scheduler++)
        for (int row = 0; row < 8; row++)
            CHECK((at = strstr(at, rows[row])) != NULL);
    CHECK(strstr(text, "1.0\n") != NULL); /* one decimal */

    IS(0, ums_node_stats_json(node, &json));
    CHECK(strncmp(json, "{\"ums_schedulers\":[{\"scheduler_id\":0,", 37) == 0);
    CHECK(strstr(json, "\"ums_wait_stats\":[") != NULL);
    CHECK(strcmp(json + strlen(json) - 3, "]}\n") == 0);

    IS(-EINVAL, ums_node_stats_text(node, NULL));
    IS(-EINVAL, ums_node_stats_json(NULL, &json));
    ums_text_free(text);
    ums_text_free(json);
    ums_text_free(NULL);
    IS(0, ums_node_free(node));
    puts("ok");
    return 0;
}
