#!/bin/sh
# Prints the sources of Debian that this host uses, for mmdebstrap: nothing on another system. Each line is one of
# sources.list(5).
set -eu
# shellcheck disable=SC2016 # apt fills them in
apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian'
