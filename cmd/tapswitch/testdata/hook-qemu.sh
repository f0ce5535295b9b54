#!/bin/sh
# Made by 'tapswitch hook install'; 'tapswitch hook uninstall' takes it away.
# It hands what libvirt says over to tapswitchd.
tapswitch='/opt/it'\''s/tapswitch'
[ -x "$tapswitch" ] || exit 0
exec "$tapswitch" hook qemu -- "$@"
