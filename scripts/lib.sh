# SPDX-License-Identifier: GPL-2.0
# Shared by prepare, env and preflight (sourced, bash): where things are kept,
# which tools build the test kernel, and the name of the tree they give.
# Everything may be overridden from the environment.
# shellcheck shell=bash
# shellcheck disable=SC2034  # the variables are for the scripts that source this

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${RO2IBLND_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ro2iblnd}

# Kernel series known to work, best first.
KERNEL_SERIES=${KERNEL_SERIES:-"7.3 7.2"}
KERNEL_FLAVOR=${KERNEL_FLAVOR:-plain}
BINDGEN_VERSIONS="0.73.0 0.72.1 0.71.1"

# The distribution's own rustc, not the first on PATH: the kernel's crates load
# only into the identical compiler, and only it has the matching core sources.
if [ -z "${RUSTC:-}" ]; then
	RUSTC=/usr/bin/rustc
	[ -x "$RUSTC" ] || RUSTC=$(command -v rustc || echo rustc)
fi
rust_tool() { # next to rustc, so that it is of the same build
	local tool
	tool=$(dirname "$(command -v "$RUSTC" || echo "$RUSTC")")/$1
	if [ -x "$tool" ]; then echo "$tool"; else echo "$1"; fi
}
RUSTFMT=${RUSTFMT:-$(rust_tool rustfmt)}
RUSTDOC=${RUSTDOC:-$(rust_tool rustdoc)}
CLIPPY_DRIVER=${CLIPPY_DRIVER:-$(rust_tool clippy-driver)}
CARGO=${CARGO:-$(rust_tool cargo)}

# LLVM suffix as Kbuild wants it: "-19", or "1" for tools without a suffix.
if [ -z "${LLVM:-}" ]; then
	LLVM=-19
	for v in 19 20 21 22; do
		if command -v "clang-$v" >/dev/null && command -v "ld.lld-$v" >/dev/null; then
			LLVM=-$v
			break
		fi
	done
fi
case $LLVM in
-*)
	CLANG=clang$LLVM
	LIBCLANG_PATH=${LIBCLANG_PATH:-/usr/lib/llvm$LLVM/lib}
	;;
*) CLANG=clang ;;
esac

if [ -z "${BINDGEN:-}" ]; then
	BINDGEN=bindgen
	for v in $BINDGEN_VERSIONS; do
		if [ -x "$CACHE/bindgen-$v/bin/bindgen" ]; then
			BINDGEN=$CACHE/bindgen-$v/bin/bindgen
			break
		fi
	done
fi

say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }
die() {
	say "$*"
	exit 1
}

# The kernel source: $KERNEL_SRC if it is a tree, else what prepare unpacked.
# (A tarball in KERNEL_SRC is unpacked by prepare under its own hash.)
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
	debug) echo "$here/kernel-debug.config" ;;
	*) die "KERNEL_FLAVOR=$KERNEL_FLAVOR: plain or debug" ;;
	esac
}

# One built tree per source, configuration and toolchain.
kernel_build_dir() {
	local src key fragments
	src=$(kernel_source) || return 1
	mapfile -t fragments < <(kernel_fragments)
	key=$({
		echo "$src"
		cat "$src/Makefile"
		# A tag is no reason to build it again.
		grep -hv '^# SPDX-' "${fragments[@]}"
		"$RUSTC" --version
		"$CLANG" --version
		"$BINDGEN" --version
	} 2>&1 | sha256sum)
	echo "$CACHE/kernel/$(basename "$src")-$KERNEL_FLAVOR-${key:0:12}"
}
