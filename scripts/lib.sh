# SPDX-License-Identifier: GPL-2.0
# Library of prepare, stock, env and preflight (sourced, bash). It defines the folders of the cache, the tools that
# build the kernels and the module, and the name of the built tree. The environment may override everything.
# shellcheck shell=bash
# shellcheck disable=SC2034  # the variables are for the scripts that source this

# The scripts parse the output of tools.
export LC_ALL=C

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${RO2IBLND_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ro2iblnd}
# Each clone has its own folder: cargo identifies build products by their path inside the clone and by the age of the
# sources, so it would mistake the products of another clone for those of this clone.
CARGO_CACHE=$CACHE/cargo/$(dirname "$here" | sha256sum | cut -c1-12)

# Kernel series that are known to work, the best first.
KERNEL_SERIES=${KERNEL_SERIES:-"7.3 7.2"}
KERNEL_FLAVOR=${KERNEL_FLAVOR:-plain}
# Modules that run and check the tests: of the distribution, or in a virtual environment.
TEST_MODULES="pytest, xdist, pyflakes"
BINDGEN_VERSIONS="0.73.0 0.72.1 0.71.1"

# Values from the environment, saved because choose_tools may be called more than once.
declare -A given
for v in RUSTC RUSTFMT RUSTDOC CLIPPY_DRIVER CARGO LLVM LIBCLANG_PATH BINDGEN; do
	given[$v]=${!v:-}
done

# Chooses all tools. prepare calls it again after it has installed packages.
choose_tools() {
	choose_rustc
	RUSTFMT=${given[RUSTFMT]:-$(rust_tool rustfmt)}
	RUSTDOC=${given[RUSTDOC]:-$(rust_tool rustdoc)}
	CLIPPY_DRIVER=${given[CLIPPY_DRIVER]:-$(rust_tool clippy-driver)}
	CARGO=${given[CARGO]:-$(rust_tool cargo)}
	choose_llvm
	choose_bindgen
}

# Chooses the distribution's own rustc, not the first rustc on PATH: the kernel's crates load only into the identical
# compiler, and only the distribution's rustc is sure to have matching sources of core.
choose_rustc() {
	RUSTC=${given[RUSTC]:-/usr/bin/rustc}
	[ -x "$RUSTC" ] || RUSTC=$(command -v rustc || echo rustc)
}

rust_tool() { # in the folder of rustc, so that it is of the same build
	local tool
	tool=$(dirname "$(command -v "$RUSTC" || echo "$RUSTC")")/$1
	if [ -x "$tool" ]; then echo "$tool"; else echo "$1"; fi
}

has_libclang() { compgen -G "$1/libclang*.so*" >/dev/null; }

# Sets the LLVM suffix as Kbuild wants it: "-19", or "1" for tools without a suffix. bindgen needs only libclang, which
# may be installed without the rest of LLVM.
choose_llvm() {
	local v
	LLVM=${given[LLVM]:-}
	if [ -z "$LLVM" ]; then
		LLVM=-19
		for v in 19 20 21 22; do
			if command -v "clang-$v" >/dev/null && command -v "ld.lld-$v" >/dev/null; then
				LLVM=-$v
				break
			fi
		done
	fi
	LIBCLANG_PATH=${given[LIBCLANG_PATH]:-}
	case $LLVM in
	-*)
		CLANG=clang$LLVM
		[ -n "$LIBCLANG_PATH" ] || LIBCLANG_PATH=/usr/lib/llvm$LLVM/lib
		;;
	*) CLANG=clang ;;
	esac
	[ -z "${given[LIBCLANG_PATH]}" ] && [ -n "$LIBCLANG_PATH" ] && ! has_libclang "$LIBCLANG_PATH" || return 0
	for v in 19 20 21 22; do
		if has_libclang "/usr/lib/llvm-$v/lib"; then
			LIBCLANG_PATH=/usr/lib/llvm-$v/lib
			return
		fi
	done
}

BINDGEN_OLDEST=0.71.1
bindgen_version() { "$1" --version 2>/dev/null | awk '$1 == "bindgen" { print $2 }'; }
new_enough_bindgen() {
	local have
	have=$(bindgen_version "$1") && [ -n "$have" ] &&
		[ "$(printf '%s\n' "$BINDGEN_OLDEST" "$have" | sort -V | head -n 1)" = "$BINDGEN_OLDEST" ]
}

# Chooses bindgen. A bindgen that prepare built comes first, so that a machine always uses the same bindgen.
choose_bindgen() {
	local v
	BINDGEN=${given[BINDGEN]:-}
	[ -z "$BINDGEN" ] || return 0
	for v in $BINDGEN_VERSIONS; do
		BINDGEN=$CACHE/bindgen-$v/bin/bindgen
		[ ! -x "$BINDGEN" ] || return 0
	done
	for BINDGEN in "$CACHE/bindgen-debian/bindgen" /usr/bin/bindgen; do
		! new_enough_bindgen "$BINDGEN" || return 0
	done
	BINDGEN=bindgen
}

say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }
die() {
	say "$*"
	exit 1
}

# Prints the kernel source: $KERNEL_SRC if that is a tree, otherwise what prepare unpacked. (prepare unpacks a tarball
# in KERNEL_SRC under a name with the tarball's hash.)
kernel_source() {
	local s
	if [ -n "${KERNEL_SRC:-}" ]; then
		if [ -d "$KERNEL_SRC" ]; then
			(cd "$KERNEL_SRC" && pwd)
			return
		fi
		s=$(sha256sum <"$KERNEL_SRC") || return 1
		echo "$CACHE/src/own-${s:0:12}"
		return
	fi
	for s in $KERNEL_SERIES; do
		if [ -e "$CACHE/src/linux-$s/Makefile" ]; then
			echo "$CACHE/src/linux-$s"
			return
		fi
	done
	return 1
}

kernel_fragments() {
	echo "$here/kernel.config"
	case $KERNEL_FLAVOR in
	plain) ;;
	debug | kcsan) echo "$here/kernel-$KERNEL_FLAVOR.config" ;;
	*) die "KERNEL_FLAVOR=$KERNEL_FLAVOR: plain, debug or kcsan" ;;
	esac
}

# Prints the folder of the built tree: each source, configuration and toolchain has its own.
kernel_build_dir() {
	local src key fragments
	src=$(kernel_source) || return 1
	mapfile -t fragments < <(kernel_fragments)
	key=$({
		echo "$src"
		cat "$src/Makefile"
		# A change of the licence tag does not require another build.
		grep -hv '^# SPDX-' "${fragments[@]}"
		"$RUSTC" --version
		"$CLANG" --version
		"$BINDGEN" --version
	} 2>&1 | sha256sum)
	echo "$CACHE/kernel/$(basename "$src")-$KERNEL_FLAVOR-${key:0:12}"
}

# Stock kernels, as Debian ships them: see scripts/stock-kernel.
STOCK_SERIES="5.10 6.1 6.1-rt 6.1-cloud 6.12 6.12-rt 6.12-cloud 6.12-ofed 7.3 6.12-arm64"
STOCK_GIVEN=${STOCK:-}

release_of() { # suite: its number; 99 for a suite that is not known
	case $1 in
	bullseye*) echo 11 ;;
	bookworm*) echo 12 ;;
	trixie*) echo 13 ;;
	forky*) echo 14 ;;
	*) echo 99 ;;
	esac
}

own_release() { # 0: not Debian
	# shellcheck disable=SC1091
	(. /etc/os-release && [ "$ID" = debian ] && echo "${VERSION_ID:-14}") || echo 0
}

# Prints the packages that a release of Debian needs to build the module. bookworm's plain rustc is too old; rustc-web
# follows the browsers and has matching sources of core. bindgen is fetched apart because its package depends on all of
# clang.
build_packages() { # release, architecture of the kernel (amd64)
	local rust="rustc rust-src cargo" cross=
	[ "$1" != 12 ] || rust="rustc-web rust-web-src cargo-web"
	[ "${2:-amd64}" != arm64 ] || cross=gcc-aarch64-linux-gnu
	echo "make gcc libc6-dev libclang1-19 pahole kmod rsync ca-certificates python3 $rust${cross:+ $cross}"
}

# Prints the packages that guests are made of, on this machine.
guest_packages() { # architecture of the kernel (amd64)
	local qemu=qemu-system-x86
	[ "${1:-amd64}" != arm64 ] || qemu="$qemu qemu-system-arm"
	echo "$qemu busybox-static iproute2 xz-utils zstd debian-archive-keyring"
}

# Prints the architecture of a series or suite. "6.12-arm64" is the kernel for arm64; "trixie-arm64" is the suite with
# the packages or the root file system for it.
arch_of() { # series or suite
	case $1 in
	*-arm64) echo arm64 ;;
	*) echo amd64 ;;
	esac
}

# Prints what a series has in the names of its packages beside the number: "-rt" or "-cloud". A kernel with PREEMPT_RT
# and one for virtual machines have their own packages.
flavour_of() { # series
	case $1 in *-rt | *-cloud) echo "-${1##*-}" ;; esac
}

# Passes the names of kernels of a flavour, which may be none.
of_flavour() { # flavour
	if [ -n "$1" ]; then cat; else grep -vE -- '-(rt|cloud)-'; fi
}

# Prints the suites that have a series, the preferred suite for this machine first. A series may name its suite, as in
# 6.12-trixie, or 6.12-trixie-arm64.
stock_suites() { # series
	local series=${1%-arm64}
	series=${series%-rt}
	series=${series%-cloud}
	series=${series%-ofed}
	case $series in
	*-*) echo "${series#*-}" ;;
	5.10) echo bullseye ;;
	6.1) echo bookworm ;;
	6.12)
		# The kernel for arm64 is built in a root file system on Debian 12 in any case.
		[ "$(own_release)" -ge 13 ] || [ "$(arch_of "$1")" = arm64 ] || echo bookworm-backports
		echo trixie
		;;
	7.3) echo trixie-backports ;;
	*) die "no stock kernel of series $1 (known: $STOCK_SERIES)" ;;
	esac
}

# Returns whether to build for a suite on this machine: headers contain programs that need the C library of their
# release, or a later one.
built_here() { # suite
	[ "$(release_of "$1")" -le "$(own_release)" ]
}

# Prints an identifier of the stand-in for OFED, which is built again when its script changes.
mock_ofed_id() { sha256sum <"$here/mock-ofed" | cut -c1-8; }

stock_dir() { # series: the unpacked packages of the newest release in the cache
	local suite found suites arch flavour suffix=
	suites=$(stock_suites "$1")
	arch=$(arch_of "$1")
	flavour=$(flavour_of "$1")
	case $1 in *-ofed) suffix=-ofed-$(mock_ofed_id) ;; esac
	for suite in $suites; do
		found=$(compgen -G "$CACHE/stock/${1%%-*}-$suite-[0-9]*$flavour-$arch$suffix/stock.env" |
			of_flavour "$flavour" | sort -V | tail -n 1) || true
		if [ -n "$found" ]; then
			dirname "$found"
			return
		fi
	done
	return 1
}

# Default series. On Debian 12 it is the release's own 6.1 if 6.12 was not fetched and 6.1 was.
if [ -n "$STOCK_GIVEN" ]; then
	STOCK=$STOCK_GIVEN
elif [ "$(own_release)" = 12 ] && ! stock_dir 6.12 >/dev/null && stock_dir 6.1 >/dev/null; then
	STOCK=6.1
else
	STOCK=6.12
fi

choose_tools
