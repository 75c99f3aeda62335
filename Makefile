# SPDX-License-Identifier: GPL-2.0
# ro2iblnd: an LNet network driver for RDMA networks. `make help` lists the targets. Kbuild has the build itself; this
# file finds the kernel and the tools.

# The module's name is set on the command line. A NAME in the environment may belong to another program.
ifeq ($(origin NAME),environment)
override NAME :=
unexport NAME
endif

# Lustre builds for stock kernels without changes.
ifneq ($(filter test-lustre test-lustre-fs soak-lustre-fs bench-lustre lustre-module,$(MAKECMDGOALS)),)
export KERNEL_FLAVOR ?= stock
endif

# KDIR, RUSTC, BINDGEN, LLVM... of the tree that scripts/prepare built, unless the command line sets them.
define newline


endef
ifeq ($(filter help clean demo test test-long test-demo deb rpm test-packages ro2ibtop sim sim-long sim-defects sim-mutants fuzz kmod kmod-deb install-tools,$(MAKECMDGOALS)),)
$(eval $(subst |,$(newline),$(shell $(if $(KDIR),KDIR=$(KDIR)) $(if $(KERNEL_FLAVOR),KERNEL_FLAVOR=$(KERNEL_FLAVOR)) scripts/env | sed 's/=/ ?= /' | tr '\n' '|')))
endif
KDIR ?= /lib/modules/$(shell uname -r)/build
# Copies the tree without build products. rsync exits with 24 if files vanished meanwhile: a compiler that runs at the
# same time deletes its temporary files.
copy = rsync -a --delete --filter=':- .gitignore' --exclude=.git ./ $(1)/ || [ $$? = 24 ]
RUSTFMT ?= rustfmt

# The module is built here, or outside the source tree with OUT=/path or O=/path. O must not reach the kernel's
# Makefile, which takes O for the kernel's own build tree. OUT becomes the kernel's MO=, which kernels from 6.13 on know
# and older kernels ignore.
OUT ?= $(O)
MAKEOVERRIDES := $(filter-out O=%,$(MAKEOVERRIDES))
unexport O
# OFED's exports replace those of the kernel's RDMA core.
extra-symbols = $(wildcard $(patsubst %,%/Module.symvers,$(abspath $(LUSTRE) $(OFED))))
kmake = $(MAKE) -C $(KDIR) M=$(CURDIR) $(if $(OUT),MO=$(abspath $(OUT))) \
	$(if $(LLVM),LLVM=$(LLVM)) $(if $(RUSTC),RUSTC=$(RUSTC)) \
	$(if $(BINDGEN),BINDGEN=$(BINDGEN)) \
	$(if $(CLIPPY_DRIVER),CLIPPY_DRIVER=$(CLIPPY_DRIVER)) \
	$(if $(LIBCLANG_PATH),LIBCLANG_PATH=$(LIBCLANG_PATH)) \
	$(if $(NAME),NAME=$(NAME)) \
	$(if $(LUSTRE),LUSTRE=$(abspath $(LUSTRE))) $(if $(OFED),OFED=$(abspath $(OFED))) \
	$(if $(extra-symbols),KBUILD_EXTRA_SYMBOLS="$(extra-symbols)") \
	$(if $(KUNIT_TESTS),KUNIT_TESTS=$(KUNIT_TESTS)) $(if $(W),W=$(W)) \
	$(if $(TEST_MODULES),TEST_MODULES=$(TEST_MODULES)) $(if $(NO_HOOKS),NO_HOOKS=1) \
	$(if $(NO_TIMES),NO_TIMES=$(NO_TIMES)) $(if $(NO_DK),NO_DK=$(NO_DK)) \
	$(if $(RUST_CRATE),RUST_CRATE=$(RUST_CRATE))

rust-files = $(shell git ls-files -co --exclude-standard '*.rs')

export LIBCLANG_PATH
# core and the crates of the compiler are the same for many builds.
ifneq ($(CACHE),)
export RO2IB_RUST_CACHE ?= $(CACHE)/rust
endif

modules:
	$(if $(OUT),@mkdir -p $(OUT))
	+$(kmake) modules
	@ls $(or $(OUT),.)/$(or $(NAME),ro2iblnd).ko

# Single files of the module, as Kbuild takes them.
only:
	+$(kmake) $(GOALS)

# clippy changes code generation, hence the copy: never load a module from there.
clippy:
	@mkdir -p .clippy
	@$(call copy,.clippy)
	+$(MAKE) --no-print-directory -C .clippy CLIPPY=1 KUNIT_TESTS=1 only \
		GOALS="rust/ro2iblnd.o tests-kunit/kunit_main.o"

fmt-check:
	$(RUSTFMT) --check \
		--config skip_children=true $(rust-files)

doc: modules
	RUSTDOC=$(RUSTDOC) scripts/rustdoc $(or $(OUT),.) $(or $(OUT),.)/doc

# Files for editors, which need a rust-analyzer as new as the rustc, and rust-src.
rust-analyzer: modules
	RUSTC=$(RUSTC) scripts/rust-analyzer $(or $(OUT),.)

# These two targets install what is missing and build the modules themselves.
demo:
	@scripts/demo

test:
	@scripts/test

test-long:
	@scripts/test --long

# The demo on a machine that has nothing yet: in new root file systems of Debian 12 and 13.
test-demo:
	@scripts/test-demo

# Real LNet needs a module that is built against it, hence the copy. The benchmark measures a module without hooks for
# tests, as users have it.
lustre-module:
	$(if $(LUSTRE),,$(error LUSTRE=/path/to/built/tree is missing))
	@mkdir -p .lustre
	@$(call copy,.lustre)
	+$(MAKE) --no-print-directory -C .lustre LUSTRE=$(abspath $(LUSTRE)) \
		TEST_MODULES=1 $(if $(filter bench-lustre,$(MAKECMDGOALS)),NO_HOOKS=1) modules

with-lustre = LUSTRE=$(abspath $(LUSTRE)) RO2IBLND_MODULES=$(CURDIR)/.lustre $(PYTHON) -B

# PEER=/path/to/another/tree is the tree of the nodes with ko2iblnd: an older Lustre, for another stock kernel.
# TESTS='-k cksum' runs some of the tests; BENCH='--pairs 2', --count, --storm, --latency are for the benchmark.
test-lustre: lustre-module
	$(with-lustre) -m pytest -v -rA tests-vm/test_lustre.py $(if $(PEER),,tests-vm/test_lustre_flow.py tests-vm/test_lustre_link_flap.py \
		tests-vm/test_lustre_lnetctl.py tests-vm/test_lustre_gpu.py \
		tests-vm/test_lustre_tunable_effects.py tests-vm/test_lustre_many_conns.py \
		tests-vm/test_lustre_failover.py tests-vm/test_lustre_sanity_lnet.py) $(TESTS)

# A file system over real LNet. WITH=both: also over ko2iblnd.
test-lustre-fs: lustre-module
	@scripts/prepare fs
	WITH=$(or $(WITH),ours) $(with-lustre) -m pytest -v -rs --durations=0 tests-vm/test_lustre_fs.py tests-vm/test_lustre_fs_rails.py \
		tests-vm/test_lustre_fs_memory.py $(TESTS)

# A soak test of the file system, under faults from a seed: TESTS='--seconds 600 --seed 7'; --long: an hour.
soak-lustre-fs: lustre-module
	@scripts/prepare fs
	WITH=$(or $(WITH),ours) $(with-lustre) -m pytest -v -rs -s tests-vm/test_lustre_fs_soak.py $(TESTS)

bench-lustre: lustre-module
	$(with-lustre) tests-vm/bench_lustre.py $(BENCH)

# The KUnit suites with the driver's own kernel crate, for a kernel that has a crate itself, hence the copy.
own-crate:
	@mkdir -p .own
	@$(call copy,.own)
	+$(MAKE) --no-print-directory -C .own RUST_CRATE=own KUNIT_TESTS=1 $(if $(GOALS),only,modules)

# Tests on the kernel with all checks (KASAN, lockdep, ...), hence the copy. debug-tests selects the tests that free the
# most memory.
debug-tests = close_under_load or read_meanwhile or completion_errors or calls_fail or unplug or kmemleak \
	or (test_dma and not reach)
test-debug:
	@mkdir -p .debug
	@$(call copy,.debug)
	+KERNEL_FLAVOR=debug $(MAKE) --no-print-directory -C .debug TEST_MODULES=1 modules
	KERNEL_FLAVOR=debug RO2IBLND_MODULES=$(CURDIR)/.debug $(PYTHON) -B -m pytest -v -rA --few \
		-k '$(debug-tests)' \
		tests-vm/test_close_under_load.py tests-vm/test_faults_verbs.py tests-vm/test_faults_device.py \
		tests-vm/test_leaks.py tests-vm/test_dma.py

# Tests on the kernel that finds data races, in Rust code, too.
test-kcsan:
	@mkdir -p .kcsan
	@$(call copy,.kcsan)
	+KERNEL_FLAVOR=kcsan $(MAKE) --no-print-directory -C .kcsan KUNIT_TESTS=1 TEST_MODULES=1 modules
	KERNEL_FLAVOR=kcsan RO2IBLND_MODULES=$(CURDIR)/.kcsan $(PYTHON) -B -m pytest -v -rA --few \
		-k 'not fit and not 100_cycles and not finish_before' \
		tests-vm/test_kcsan_works.py tests-vm/test_traffic.py tests-vm/test_lifecycle.py \
		tests-vm/test_debugfs.py tests-vm/test_link_flap.py tests-vm/test_close_under_load.py \
		tests-vm/test_faults_device.py $(TESTS)

# Builds without histograms, and without lines for LNet's debug log, to measure what these cost.
no-times no-dk:
	@mkdir -p .$(subst -,,$@)
	@$(call copy,.$(subst -,,$@))
	+$(MAKE) --no-print-directory -C .$(subst -,,$@) $(if $(filter no-dk,$@),NO_DK=1,NO_TIMES=1) modules

# Counts the instructions per message of a module without hooks for tests, hence the copy: BENCH='--help'.
bench: bench-module
	$(PYTHON) -B scripts/bench $(BENCH)

.PHONY: bench-module
bench-module:
	@mkdir -p .bench
	@$(call copy,.bench)
	+$(MAKE) --no-print-directory -C .bench modules

# Packages with the sources, for DKMS: Documentation/install.md.
deb rpm:
	@scripts/package $@

# Packages with the module, built for the kernel of KDIR= and the LNet of LUSTRE=; OFED=, SIGN=: scripts/package.
kmod kmod-deb:
	@KDIR="$(KDIR)" LUSTRE="$(LUSTRE)" OFED="$(OFED)" SIGN="$(SIGN)" \
		scripts/package $(if $(filter kmod,$@),kmod-rpm,$@)

# With LUSTRE=path, a tree built for the stock kernel; otherwise with lnet_lite.
test-packages:
	@scripts/test-packages $(if $(LUSTRE),$(abspath $(LUSTRE)))

# The live view of the driver. It needs cargo and a rustc of 1.85 or later, and no kernel.
CARGO ?= cargo
ro2ibtop:
	$(CARGO) build --release --locked --target-dir .ro2ibtop --manifest-path scripts/ro2ibtop/Cargo.toml
	@ls .ro2ibtop/release/ro2ibtop

# Simulation of the whole driver on the host, for a minute or SEEDS= seeds. It needs no kernel. FROM=n begins with
# another seed; SEED=n runs one seed and prints what happened.
sim:
	@scripts/sim $(if $(SEED),--seed $(SEED)) $(if $(FROM),--from $(FROM)) $(if $(SEEDS),--count $(SEEDS))

sim-long:
	@scripts/sim --long $(if $(FROM),--from $(FROM)) $(if $(SEEDS),--count $(SEEDS)) $(if $(HOURS),--hours $(HOURS))

# Puts old defects back, and checks that the simulation finds them.
sim-defects:
	@scripts/sim-defects $(DEFECTS)

# Makes a hundred small changes of the driver, drawn from a seed, and checks that the simulation finds them. DRAW= sets
# another number.
sim-mutants:
	@scripts/sim-mutants --draw $(or $(DRAW),100)

# Coverage-guided fuzzing, for a minute or SECONDS=; TARGETS=decode: one target.
fuzz:
	@scripts/fuzz --seconds $(or $(SECONDS),60) $(TARGETS)

# Pictures for the documentation, wide enough that no verdict is cut.
screenshot: ro2ibtop
	draw() { \
		.ro2ibtop/release/ro2ibtop --svg --width $$2 $$3 --snapshot scripts/ro2ibtop/tests/guest/$$1.txt \
			>Documentation/ro2ibtop-$$1.svg; \
	}; \
	draw healthy 150 && draw slow-peer 170 && draw dead-peer 195 && draw ended 150 --events

# Installs without DKMS. DESTDIR= sets another root.
release = $(shell cat $(KDIR)/include/config/kernel.release 2>/dev/null)
built = $(or $(OUT),.)/$(or $(NAME),ro2iblnd).ko
install:
	$(if $(release),,$(error KDIR=$(KDIR): not the headers of a kernel (no include/config/kernel.release)))
ifeq ($(DESTDIR),)
	@case $$(PATH=$$PATH:/usr/sbin:/sbin modinfo -F lnet $(built)) in \
	lnet_lite*) echo '$(built) was built for lnet_lite, for tests: make LUSTRE=/path/to/built/tree' >&2; exit 1 ;; esac
endif
	install -D -m 644 $(built) $(DESTDIR)/lib/modules/$(release)/updates/$(or $(NAME),ro2iblnd).ko
	+$(MAKE) --no-print-directory install-tools
	if [ -e .ro2ibtop/release/ro2ibtop ]; then \
		install -D -m 755 .ro2ibtop/release/ro2ibtop $(DESTDIR)/usr/bin/ro2ibtop; fi
	for page in scripts/packaging/man/*; do \
		case $$page in */ro2ibtop.1) [ -e .ro2ibtop/release/ro2ibtop ] || continue ;; esac; \
		install -D -m 644 $$page $(DESTDIR)/usr/share/man/man$${page##*.}/$${page##*/} || exit; done
	# The root of a system has modules.dep; a DESTDIR that is only packed has no such list.
	if [ -z "$(DESTDIR)" ] || [ -e "$(DESTDIR)/lib/modules/$(release)/modules.dep" ]; then \
		depmod $(if $(DESTDIR),-b $(DESTDIR)) -a $(release); fi

# The tools for operators on a node without the sources, also for the packages with the module.
install-tools:
	install -D -m 755 scripts/ro2iblnd-switch $(DESTDIR)/usr/sbin/ro2iblnd-switch
	install -D -m 755 scripts/ro2ib-report $(DESTDIR)/usr/sbin/ro2ib-report
	# preflight without the sources checks only whether the kernel will load the module, and calls module-symbols.
	for file in preflight module-symbols hardware-day; do \
		install -D -m 755 scripts/$$file $(DESTDIR)/usr/lib/ro2iblnd/$$file || exit; done
	ln -sf ../lib/ro2iblnd/preflight $(DESTDIR)/usr/sbin/ro2iblnd-preflight

clean:
	find . -path ./.git -prune -o \( -name '*.o' -o -name '*.ko' \
		-o -name '*.mod' -o -name '*.mod.c' -o -name '.*.cmd' \
		-o -name '*.d' -o -name 'modules.order' -o -name 'Module.symvers' \
		-o -name 'bindings_generated.rs' -o -name '*.rsi' -o -name 'ro2iblnd_probes.h' \) -type f -print0 | \
		xargs -0 rm -f
	rm -rf rust/kernel/lib rust/kernel/base-* rust/kernel/flags rust/kernel/cfg rust/kernel/target.json
	rm -rf .bench .clippy .lustre .debug .kcsan .notimes .nodk .own .stock .ro2ibtop doc

help:
	@echo 'modules    build the module (default)'
	@echo 'clippy     lint all Rust code, tests included'
	@echo 'fmt-check  rustfmt in check mode'
	@echo 'doc        rustdoc of the driver, private items included'
	@echo 'rust-analyzer  rust-project.json, for editors'
	@echo 'demo       prepare the machine, build, and run two guests; last line "demo: ok"'
	@echo 'test       all tests; last line "N passed, N failed"'
	@echo 'test-long  all tests, and those that take long'
	@echo 'test-demo  the demo in new root file systems of Debian 12 and 13; needs root'
	@echo 'test-debug tests of closes, failing calls and unplugging on the debug kernel'
	@echo 'test-kcsan tests of traffic, closes, links and unplugging on the kernel with KCSAN (data races)'
	@echo 'test-lustre, bench-lustre  tests and benchmark with real LNet; LUSTRE=path'
	@echo 'test-lustre-fs  tests of a Lustre file system; WITH=both: also over ko2iblnd; WITH=all: also mixed'
	@echo 'soak-lustre-fs  a long test of a Lustre file system under faults that a seed selects'
	@echo 'bench      count the instructions per LNet message in two guests'
	@echo 'own-crate  build the module and the KUnit suites with the driver'\''s own kernel crate, in .own'
	@echo 'no-times   build a module without histograms, for comparison in benchmarks, in .notimes'
	@echo 'no-dk      build a module without histograms and without LNet'\''s debug log, in .nodk'
	@echo 'deb, rpm   build packages for DKMS, in dist/'
	@echo 'kmod, kmod-deb  build packages with the module for KDIR= and LUSTRE= (and OFED=), in dist/'
	@echo 'ro2ibtop   build ro2ibtop, the monitor of the driver for a terminal'
	@echo 'sim        simulate the driver on the host for a minute, or SEEDS=n seeds; SEED=n: print its events'
	@echo 'sim-long   simulate until stopped, or for HOURS=n or SEEDS=n; continues the previous run'
	@echo 'sim-mutants  check how many of 100 random changes of the driver the simulation detects'
	@echo 'sim-defects  reintroduce old defects, and check that the simulation detects each'
	@echo 'fuzz       coverage-guided fuzzing of messages and private data of a peer, for a minute or SECONDS=n'
	@echo 'screenshot make the pictures of ro2ibtop in the documentation'
	@echo 'install    install the built module and the scripts for operators without DKMS; DESTDIR=path'
	@echo 'test-packages  test of the package in a new Debian 13, with lnet_lite or LUSTRE=path; needs root'
	@echo 'clean      remove what was built'
	@echo
	@echo 'KDIR=path      built kernel tree      NAME=ko2iblnd   name of the module'
	@echo 'LUSTRE=path    built Lustre tree      KUNIT_TESTS=1   also build ro2iblnd_kunit.ko'
	@echo 'OFED=path      headers of MLNX_OFED or DOCA-OFED, if scripts/ofed-find does not find them'
	@echo 'OUT=path       output directory (O=path is the same), for kernels from 6.13 on'
	@echo 'KERNEL_FLAVOR=stock STOCK=6.1, debug, kcsan   test kernel      TESTS=, BENCH=, PEER=   see Documentation/testing.md'
	@echo 'RUST_CRATE=own, in-tree    kernel crate; default: the output of scripts/which-kernel-crate'

.DEFAULT_GOAL := modules
.PHONY: modules only own-crate no-times no-dk clippy fmt-check doc rust-analyzer ro2ibtop sim sim-long sim-defects sim-mutants fuzz screenshot demo test test-long test-demo lustre-module test-lustre test-lustre-fs soak-lustre-fs bench-lustre test-debug test-kcsan bench deb rpm kmod kmod-deb install install-tools test-packages clean help
