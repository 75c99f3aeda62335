#!/bin/busybox sh
# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=dash
# The guest's init and command agent. Each line on the virtio-serial port
# "agent" is a request
#	<id> run <command in base64>	or	<id> kill
# and each command's end is one line back
#	<id> <exit status> <output in base64>
# Commands run side by side, each in a session of its own, so that one that
# hangs does not take the agent with it.
export PATH=/bin HOME=/root TERM=dumb
/bin/busybox --install -s /bin # leaves alone what is there
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

# A port's name comes a moment after its driver.
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
# The same compiled (agent.c), where there is a compiler for this machine.
[ ! -x /bin/agent ] || exec /bin/agent

serve() { # id, command in base64
	echo "$2" | base64 -d >"/run/$1.cmd"
	setsid /bin/sh "/run/$1.cmd" >"/run/$1.out" 2>&1 </dev/null 3>&- &
	pid=$!
	echo $pid >"/run/$1.pid"
	wait $pid
	rc=$?
	# One writer at a time: a long answer is more than one write.
	until mkdir /run/lock 2>/dev/null; do sleep 0.01; done
	echo "$1 $rc $(base64 -w 0 <"/run/$1.out")" >&3
	rmdir /run/lock
	rm -f "/run/$1".*
}

echo "0 0 " >&3
while read -r id what command <&3; do
	case $what in
	run) serve "$id" "$command" & ;;
	kill) kill -9 "-$(cat "/run/$id.pid")" 2>/dev/null ;;
	esac
done
