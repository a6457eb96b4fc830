/** Exit code of `MOVE_FILES` for a source that is not in the archive. */
export const SOURCE_MISSING = 11;

/** Unpacks the archive on stdin. Parameter: a new directory for it. */
export const UNPACK_FILES = `
mkdir -m 700 -- "$1" && cd -- "$1" && exec tar -x -p -o -f -
`;

/**
 * Moves unpacked files to their place, as COPY of Docker does: the contents of a directory are merged into another, a
 * link to a directory is followed there, and one to a file is replaced.
 *
 * Renaming takes no longer for more files: only directories that are on both sides are gone through.
 *
 * Parameters: the directory of the archive, the source in it, the destination, `owner:group`, a mode or nothing.
 */
export const MOVE_FILES = `
shopt -s dotglob nullglob
stage=$1 entry=$2 to=$3 owner=$4 mode=$5
merge() {
  local name at names=()
  for name in "$1"/*; do
    if [ -d "$name" ] && [ ! -L "$name" ] && [ -d "$2/\${name##*/}" ]; then
      merge "$name" "$2/\${name##*/}" || return
    else
      names+=("$name")
    fi
  done
  for ((at = 0; at < \${#names[@]}; at += 200)); do
    mv -f -- "\${names[@]:at:200}" "$2/" || return
  done
}
cd -- "$stage" || exit
[ -e "$entry" ] || [ -L "$entry" ] || exit ${SOURCE_MISSING}
chown -R -h -- "$owner" "$entry" || exit
[ -z "$mode" ] || [ -L "$entry" ] || chmod -R -- "$mode" "$entry" || exit
if [ -d "$entry" ] && [ ! -L "$entry" ]; then
  if [ ! -d "$to" ]; then
    mkdir -p -- "$to" && chown -- "$owner" "$to" || exit
  fi
  merge "$entry" "\${to%/}" || exit
else
  case $to in
  */) mkdir -p -- "$to" || exit ;;
  /*/*) mkdir -p -- "\${to%/*}" || exit ;;
  esac
  mv -f -- "$entry" "$to" || exit
fi
cd / && rm -rf -- "$stage"
`;
