# What the provider does on a host, by POSIX sh. The variables op, id, run, token, seconds, record, previous and keys are
# set by the lines before this text, which comes on stdin: no process has any of it in its arguments.
#
#   ~/.launcher-host/HOST/lease     id, run, token, end of the boot lease, record: one line each; who has it has the host
#   ~/.launcher-host/HOST/m/ID/     the machine: login, bin, home, tmp, run, lease (see the package comment)
#   ~/.launcher-host/HOST/ended/ID  the lease's lines, why it ended and when; kept for a day: Create looks for tokens here
#   ~/.launcher-host/login          takes a login of a run's to that run's machine on the host where it arrives
#   ~/.ssh/authorized_keys          the run's keys, each with that as its command and the machine's id as comment
#
# HOST is the host's own name: hosts may share a home folder. Everything happens under one lock, and so in one order.
umask 077
root=$HOME/.launcher-host
base=$root/$(uname -n)
now=$(date +%s)

# flock(1) on the home folder leaves nothing behind; without it a folder is the lock, broken after a minute.
take_lock() {
	exec 9<"$HOME" || exit 1
	if command -v flock >/dev/null 2>&1; then
		flock -w 20 9 || { echo "the host's lock is held" >&2; exit 1; }
		return
	fi
	tries=0
	until mkdir "$HOME/.launcher-host.lock" 2>/dev/null; do
		[ -n "$(find "$HOME/.launcher-host.lock" -prune -mmin +1 2>/dev/null)" ] && rmdir "$HOME/.launcher-host.lock" 2>/dev/null
		tries=$((tries + 1))
		[ "$tries" -lt 200 ] || { echo "the host's lock is held" >&2; exit 1; }
		sleep 0.1
	done
	trap 'rmdir "$HOME/.launcher-host.lock"' EXIT
}

modified() { stat -c %Y "$1" 2>/dev/null || stat -f %m "$1"; }

# read_lease sets the l_ variables from the lease; l_id is empty if the host is free.
read_lease() {
	l_id=
	[ -s "$base/lease" ] || return 0
	{ read -r l_id; read -r l_run; read -r l_token; read -r l_end; IFS= read -r l_record; } <"$base/lease"
	l_why='lease over'
	renewed=$base/m/$l_id/lease
	if [ -s "$renewed" ]; then
		last=$(tail -n 1 "$renewed")
		case $last in
		poweroff) l_end=0 l_why='powered off' ;;
		'' | *[!0-9]*) ;;
		*) l_end=$(($(modified "$renewed") + last)) ;;
		esac
	fi
}

write_lease() {
	printf '%s\n' "$1" "$2" "$3" "$4" "$5" >"$base/.lease" && mv "$base/.lease" "$base/lease"
}

# carriers prints the processes that were started with the machine's id in their environment.
carriers() {
	if [ -d /proc/self ]; then
		grep -lsazxF "LAUNCHER_MACHINE=$1" /proc/[0-9]*/environ | sed 's|^/proc/||; s|/environ$||'
	else
		ps axEww -o pid=,command= | wanted=$1 awk 'index($0, "LAUNCHER_MACHINE=" ENVIRON["wanted"]) { print $1 }'
	fi
}

kill_carriers() {
	tries=0
	while found=$(carriers "$1") && [ -n "$found" ]; do
		kill -9 $found 2>/dev/null
		tries=$((tries + 1))
		[ "$tries" -lt 100 ] || { echo "processes of $1 do not die:" $found >&2; return 1; }
		sleep 0.05
	done
	return 0
}

authorized() { readlink -f "$HOME/.ssh/authorized_keys" 2>/dev/null || echo "$HOME/.ssh/authorized_keys"; }

# edit_keys replaces the lines of machine $1 in authorized_keys by what is on stdin.
edit_keys() {
	file=$(authorized)
	mkdir -p "$(dirname "$file")" || return 1
	{ [ ! -e "$file" ] || grep -v " launcher-machine-$1\$" "$file"; cat; } >"$file.launcher" && mv "$file.launcher" "$file"
}

# finish ends the machine that has the lease; $1 says why, "" leaves no trace of it.
finish() {
	kill_carriers "$l_id" || return 1
	if grep -qs " launcher-machine-$l_id\$" "$(authorized)"; then
		edit_keys "$l_id" </dev/null || return 1
	fi
	chmod -R u+rwx "$base/m/$l_id" 2>/dev/null
	rm -rf "$base/m/$l_id" || return 1
	if [ -n "$1" ]; then
		mkdir -p "$base/ended" && printf '%s\n' "$l_id" "$l_run" "$l_token" "$1" "$now" "$l_record" >"$base/ended/$l_id" || return 1
	fi
	rm -f "$base/lease" || return 1
	rmdir "$base/m" "$base/ended" "$base" 2>/dev/null
	remove_login
}

# remove_login removes what hosts share once none has a lease.
remove_login() {
	for f in "$root"/*/lease; do
		[ ! -e "$f" ] || return 0
	done
	rm -f "$root/login" || return 1
	rmdir "$root" 2>/dev/null
	return 0
}

# tidy ends a machine whose lease is over and forgets what ended long ago.
tidy() {
	read_lease
	if [ -n "$l_id" ] && [ "$l_end" -le "$now" ]; then
		finish "$l_why" || exit 1
		l_id=
	fi
	[ ! -d "$base/ended" ] || find "$base/ended" -type f -mmin +1440 -exec rm -f {} +
	rmdir "$base/ended" "$base" "$root" 2>/dev/null
}

quoted() { printf "'%s'" "$(printf %s "$1" | sed "s/'/'\\\\''/g")"; }

furnish() {
	m=$base/m/$id
	mkdir -p "$m/bin" "$m/home" "$m/tmp" "$m/run" || return 1
	: >"$m/lease" || return 1
	cat >"$m/login" <<END || return 1
#!/bin/sh
export LAUNCHER_HOST_HOME="\$HOME" LAUNCHER_MACHINE=$id
m=$(quoted "$m")
export LAUNCHER_MACHINE_LEASE="\$m/lease" HOME="\$m/home" TMPDIR="\$m/tmp" XDG_RUNTIME_DIR="\$m/run" PATH="\$m/bin:\$PATH"
cd "\$HOME" || exit 1
if [ "\$(tail -n 1 "\$m/lease")" = poweroff ]; then
	echo 'this machine is off' >&2
	exit 1
fi
if [ -n "\$SSH_ORIGINAL_COMMAND" ]; then
	exec /bin/sh -c "\$SSH_ORIGINAL_COMMAND"
fi
exec "\${SHELL:-/bin/sh}" -l
END
	# The end of the machine is not the end of the host. What kills must not carry the id itself.
	cat >"$m/bin/poweroff" <<END || return 1
#!/bin/sh
# Ends this machine, not the host.
echo poweroff >$(quoted "$m/lease")
unset LAUNCHER_MACHINE
exec /bin/sh -c '
	while found=\$(if [ -d /proc/self ]; then
			grep -lsazxF "LAUNCHER_MACHINE=\$1" /proc/[0-9]*/environ | sed "s|^/proc/||; s|/environ\$||"
		else
			ps axEww -o pid=,command= | wanted=\$1 awk "index(\\\$0, \"LAUNCHER_MACHINE=\" ENVIRON[\"wanted\"]) { print \\\$1 }"
		fi) && [ -n "\$found" ]; do
		kill -9 \$found 2>/dev/null
		sleep 0.05
	done
	echo poweroff >>"\$2"' poweroff $id $(quoted "$m/lease") 2>/dev/null # somebody may have renewed the lease before it was killed
END
	cp "$m/bin/poweroff" "$m/bin/shutdown" || return 1
	cp "$m/bin/poweroff" "$m/bin/halt" || return 1
	chmod 700 "$m/login" "$m/bin/poweroff" "$m/bin/shutdown" "$m/bin/halt" || return 1
	[ -n "$keys" ] || return 0
	cat >"$root/.login" <<END || return 1
#!/bin/sh
root=$(quoted "$root")
base=\$root/\$(uname -n)
id= run=
[ ! -s "\$base/lease" ] || { read -r id; read -r run; } <"\$base/lease"
[ -n "\$id" ] && [ "\$run" = "\$1" ] && exec "\$base/m/\$id/login"
echo "this host has no machine of run \$1" >&2
exit 1
END
	chmod 700 "$root/.login" && mv "$root/.login" "$root/login" || return 1
	printf '%s\n' "$keys" | while read -r kind key; do
		printf 'command="%s %s",no-agent-forwarding,no-X11-forwarding %s %s launcher-machine-%s\n' "$root/login" "$run" "$kind" "$key" "$id"
	done | edit_keys "$id"
}

op_take() {
	tidy
	if [ -n "$l_id" ]; then
		if [ "$l_token" = "$token" ]; then
			printf 'have\n%s\n' "$l_record"
		else
			printf 'busy\n%s\n' "$l_end"
		fi
		return
	fi
	mkdir -p "$base" && write_lease "$id" "$run" "$token" "$((now + seconds))" "$record" || exit 1
	furnish || exit 1
	echo took
}

# One line per machine: state, reason, time of the end, record; then "done", without which the list is cut short.
op_list() {
	tidy
	[ -z "$l_id" ] || printf 'running\t\t\t%s\n' "$l_record"
	if [ -d "$base/ended" ]; then
		for f in "$base"/ended/*; do
			[ -e "$f" ] || continue
			{ read -r e_id; read -r e_run; read -r e_token; IFS= read -r e_why; read -r e_end; IFS= read -r e_record; } <"$f"
			printf 'terminated\t%s\t%s\t%s\n' "$e_why" "$e_end" "$e_record"
		done
	fi
	echo done
}

op_end() {
	read_lease
	[ "$l_id" = "$id" ] || { echo absent; return; }
	[ "$l_run" = "$run" ] || { echo foreign; return; }
	finish "$1" || exit 1
	echo ended
}

op_update() {
	tidy
	[ "$l_id" = "$id" ] && [ "$l_run" = "$run" ] || { echo absent; return; }
	[ "$l_record" = "$previous" ] || { echo changed; return; }
	{ read -r _; read -r _; read -r _; read -r boot_end; } <"$base/lease"
	write_lease "$l_id" "$l_run" "$l_token" "$boot_end" "$record" || exit 1
	echo updated
}

op_probe() {
	if [ -r /proc/meminfo ]; then
		echo "cpus $(nproc 2>/dev/null || grep -c ^processor /proc/cpuinfo)"
		awk '/^MemTotal:/ { print "kib", $2 }' /proc/meminfo
	else
		echo "cpus $(sysctl -n hw.ncpu)"
		echo "kib $(($(sysctl -n hw.memsize) / 1024))"
	fi
	if command -v nvidia-smi >/dev/null 2>&1; then
		nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | sed 's/^/gpu /'
	fi
	echo done
}

main() {
	[ "$op" = probe ] || take_lock
	case $op in
	take) op_take ;;
	list) op_list ;;
	end) op_end deleted ;;
	drop) op_end '' ;;
	update) op_update ;;
	probe) op_probe ;;
	*) echo "unknown operation $op" >&2; exit 1 ;;
	esac
}
main </dev/null
