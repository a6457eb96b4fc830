// Stands in for jls(8) where there is no FreeBSD, as its manual and source of FreeBSD 14 have it:
//
//   jls [-dn] [-j JAIL] [PARAMETER …]                  one line per jail, values parted by blanks
//   jls [-dn] --libxo json [-j JAIL] [PARAMETER …]     the same as JSON, every value a string, but a boolean with -n
//
// Source: usr.sbin/jls/jls.c (main, print_jail, special_print) and lib/libjail/jail.c (jailparam_get). Not here: -h, -s,
// -v, -N, other formats of libxo, the columns without parameters, other parameters.
//
// Parameters: jid, name, path, host.hostname, dying, persist.
#define _GNU_SOURCE
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "jail-table.h"

static char **names;
static int name_count;
static bool has_names, is_json, is_dying_listed, is_dead, is_first = true;

static const char *value_of(const struct jail *jail, const char *name) {
  static char number[16];
  snprintf(number, sizeof number, "%d", jail->jid);
  if (strcmp(name, "jid") == 0) return number;
  if (strcmp(name, "name") == 0) return jail->name;
  if (strcmp(name, "path") == 0) return jail->path;
  if (strcmp(name, "host.hostname") == 0) return jail->hostname;
  if (strcmp(name, "dying") == 0) return is_dead ? "true" : "false";
  if (strcmp(name, "persist") == 0) return "true";
  return NULL;
}

static void print(const struct jail *jail) {
  if (is_json) printf(is_first ? "{" : ",{");
  is_first = false;
  for (int index = 0; index < name_count; index++) {
    const char *name = names[index], *value = value_of(jail, name);
    bool is_boolean = strcmp(name, "dying") == 0 || strcmp(name, "persist") == 0;
    if (is_json && is_boolean && has_names) printf("%s\"%s\":%s", index ? "," : "", name, value);
    else if (is_json) printf("%s\"%s\":\"%s\"", index ? "," : "", name, value);
    else if (has_names && is_boolean) printf("%s%s%s", index ? " " : "", strcmp(value, "true") == 0 ? "" : "no", name);
    else if (has_names) printf("%s%s=%s", index ? " " : "", name, value);
    else printf("%s%s", index ? " " : "", value);
  }
  printf(is_json ? "}" : "\n");
}

int main(int count, char **words) {
  static const struct option options[] = {{"libxo", required_argument, NULL, 'x'}, {0}};
  static char *defaults[] = {"jid", "host.hostname", "path"};
  const char *which = NULL;
  struct jail jail;
  open_table();
  for (int option; (option = getopt_long(count, words, "dnqj:", options, NULL)) != -1;) {
    if (option == 'x') is_json = strcmp(optarg, "json") == 0;
    else if (option == 'n') has_names = true;
    else if (option == 'j') which = optarg;
    else if (option == 'd') is_dying_listed = true;
    else if (option != 'q') return 1;
  }
  names = optind < count ? words + optind : defaults;
  name_count = optind < count ? count - optind : 3;
  for (int index = 0; index < name_count; index++) {
    if (value_of(&(struct jail){.jid = 0}, names[index]) == NULL) {
      fprintf(stderr, "jls: unknown parameter: %s\n", names[index]);
      return 1;
    }
  }
  if (which != NULL && !find_jail(which, &jail)) {
    fprintf(stderr, "jls: %s\n", reason_without(which));
    return 1;
  }
  if (is_json) printf("{\"__version\":\"2\",\"jail-information\":{\"jail\":[");
  if (which != NULL) print(&jail);
  else each_jail(print);
  is_dead = true;
  if (which == NULL && is_dying_listed) each_dying_jail(print);
  if (is_json) printf("]}}\n");
  return 0;
}
