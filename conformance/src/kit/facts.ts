/**
 * A function of the shell that prints mode, uid, gid, owner, links and size of the files it is given, links followed:
 * GNU's stat(1) has -c, FreeBSD's -f.
 */
export const FACTS =
  "facts() { stat -L -c '%a %u %g %U %h %s' \"$@\" 2> /dev/null || stat -L -f '%Lp %u %g %Su %l %z' \"$@\"; }";
