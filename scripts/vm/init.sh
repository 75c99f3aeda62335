#!/bin/busybox sh
# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=dash
# The guest's init and command agent. Each line on the virtio-serial port "agent" is a request
#	<id> run <command in base64> [<path> [<text>]]	or	<id> kill
# (path and text in base64: the command only writes the text to the file and reads the file; agent.c does that itself)
# and the end of each command is reported in one line
#	<id> <exit status> <output in base64>
# Commands run in parallel, each in a session of its own, so that a command that hangs does not block the agent.
export PATH=/bin HOME=/root TERM=dumb
/bin/busybox --install -s /bin # existing files stay
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
while read -r module; do
	insmod "/modules/$module" || echo "insmod $module failed"
done </modules/order
mount -t debugfs debug /sys/kernel/debug
mount -t configfs config /sys/kernel/config
mount -t 9p -o trans=virtio,version=9p2000.L,msize=131072 share /share 2>/dev/null
ip link set lo up

# The name of a port appears a moment after its driver.
port=
until [ -n "$port" ]; do
	for p in /sys/class/virtio-ports/*; do
		if [ "$(cat "$p/name" 2>/dev/null)" = agent ]; then
			port=/dev/${p##*/}
		fi
	done
	[ -n "$port" ] || sleep 0.1
done
exec 3<>"$port"
# Uses the compiled agent (agent.c), if there was a compiler for this machine.
[ ! -x /bin/agent ] || exec /bin/agent

serve() { # id, command in base64
	echo "$2" | base64 -d >"/run/$1.cmd"
	setsid /bin/sh "/run/$1.cmd" >"/run/$1.out" 2>&1 </dev/null 3>&- &
	pid=$!
	echo $pid >"/run/$1.pid"
	wait $pid
	rc=$?
	# One writer at a time: a long answer takes several writes.
	until mkdir /run/lock 2>/dev/null; do sleep 0.01; done
	echo "$1 $rc $(base64 -w 0 <"/run/$1.out")" >&3
	rmdir /run/lock
	rm -f "/run/$1".*
}

echo "0 0 " >&3
while read -r id what command _ <&3; do
	case $what in
	run) serve "$id" "$command" & ;;
	kill) kill -9 "-$(cat "/run/$id.pid")" 2>/dev/null ;;
	esac
done
