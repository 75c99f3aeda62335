# SPDX-License-Identifier: GPL-2.0
# Library of prepare and stock (sourced, bash): fetches packages of Debian suites that this machine does not use,
# verified by an apt with its own state, so that nothing on the machine changes and no root is needed. It also runs long
# commands. lib.sh must have been sourced.
# shellcheck shell=bash

# Runs a long command with its output in a log (in $LOGS, otherwise in the cache), and reports its progress every 30 s.
# The command gets a process group of its own, so that all its processes can be stopped. The command inherits the lock,
# so that a process that survives still keeps others out.
long() {
	local name=$1 log=${LOGS:-$CACHE/log}/$1.log start=$SECONDS pid last
	shift
	mkdir -p "$(dirname "$log")"
	set -m
	"$@" >"$log" 2>&1 </dev/null &
	pid=$!
	set +m
	# shellcheck disable=SC2064  # this pid, not a later one
	trap "kill -- -$pid 2>/dev/null; exit 130" INT TERM
	last=$SECONDS
	while kill -0 "$pid" 2>/dev/null; do
		sleep 0.2
		if [ $((SECONDS - last)) -ge 30 ]; then
			last=$SECONDS
			say "  $name: $((SECONDS - start)) s, $(tail -n 1 "$log" | cut -c1-70)"
		fi
	done
	if ! wait "$pid"; then
		tail -n 30 "$log" >&2
		die "$name failed after $((SECONDS - start)) s, full log in $log"
	fi
	trap - INT TERM
	say "  $name: done in $((SECONDS - start)) s"
}

# Runs mmdebstrap, which passes descriptors to dash, which knows only those below 10: the locks must not push them
# higher.
make_rootfs() { # options of mmdebstrap
	mmdebstrap --mode=root --variant=minbase --dpkgopt=force-unsafe-io \
		--keyring=/usr/share/keyrings/debian-archive-keyring.gpg "$@" 6>&- 7>&- 8>&- 9>&-
}

# Locks a folder: one process at a time writes it, whatever step runs.
lock() { # name, descriptor
	local fd=${2:-9}
	mkdir -p "$CACHE"
	eval "exec $fd>\"\$CACHE/lock.\$1\""
	if ! flock -n "$fd"; then
		say "$1: waiting for another run"
		flock "$fd"
	fi
}

# Writes the machine's own configuration of apt, for its proxies and the like, but without its hooks: some of them
# delete what another apt has just downloaded.
apt_configuration() { # directory
	local file
	rm -rf "$1/conf.d"
	mkdir -p "$1/conf.d"
	for file in /etc/apt/apt.conf.d/*; do
		[ ! -f "$file" ] || ln -s "$file" "$1/conf.d/"
	done
	cat >"$1/conf.d/zz-last" <<-EOF
		#clear APT::Update::Pre-Invoke;
		#clear APT::Update::Post-Invoke;
		#clear APT::Update::Post-Invoke-Success;
		#clear DPkg::Post-Invoke;
		Acquire::Retries "3";
	EOF
	echo "Dir::Etc::parts \"$1/conf.d\";" >"$1/apt.conf"
}

# Mirrors that this machine's own apt uses, the Debian archive's first.
mirrors() {
	# shellcheck disable=SC2016  # these are apt's variables
	apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
		sed -n 's/^Debian|Debian|//p'
	# Without lists apt does not know which archive a mirror has; the signature tells.
	apt-get update --print-uris 2>/dev/null | sed -n "s#^'\(.*/\)dists/[^ ]*/InRelease'.*#\1#p"
}

# Reads a suite's list of packages. Then apt_in "$suite" runs an apt tool on it. Packages of SUITE-arm64 are for arm64,
# unless they are named as NAME:amd64. The function fails without output if no mirror has the suite; suite_error prints
# why.
suite_lists() { # suite
	local apt=$CACHE/apt/$1 mirror
	mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial"
	: >"$apt/status"
	apt_configuration "$apt"
	: >"$apt/err"
	while read -r mirror; do
		cat >"$apt/suite.sources" <<-EOF
			Types: deb
			URIs: $mirror
			Suites: ${1%-arm64}
			Components: main
			Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
		EOF
		apt_in "$1" get update >/dev/null 2>>"$apt/err" && return
	done < <(mirrors | awk '!seen[$0]++')
	[ -s "$apt/err" ] || echo "E: apt knows no Debian mirror" >"$apt/err"
	return 1
}

suite_error() { # suite: what the first mirror said
	sed -n 's/^E: //p' "$CACHE/apt/$1/err" | head -n 1
}

apt_in() { # suite, get or cache, arguments
	local apt=$CACHE/apt/$1 tool=apt-$2 arch
	arch=$(arch_of "$1")
	shift 2
	APT_CONFIG=$apt/apt.conf "$tool" -qq -o Dir::State="$apt/state" -o Dir::State::status="$apt/status" \
		-o Dir::Cache="$apt/cache" -o Dir::Etc::sourcelist="$apt/suite.sources" -o Dir::Etc::sourceparts=/dev/null \
		-o APT::Default-Release= -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null \
		-o APT::Sandbox::User=root -o Acquire::Languages=none -o APT::Update::Error-Mode=any \
		-o APT::Architecture="$arch" -o APT::Architectures="$(printf '%s\n' "$arch" amd64 | uniq | paste -sd,)" "$@"
}

# Downloads packages of a suite and unpacks them into a directory.
unpack_packages() { # suite, directory, package...
	local suite=$1 dir=$2 tmp deb
	shift 2
	tmp=$(mktemp -d "$CACHE/apt/$suite/tmp.XXXXXX")
	if ! (cd "$tmp" && apt_in "$suite" get download "$@"); then
		rm -rf "$tmp"
		return 1
	fi
	mkdir -p "$dir"
	for deb in "$tmp"/*.deb; do
		dpkg-deb -x "$deb" "$dir"
	done
	rm -rf "$tmp"
}
