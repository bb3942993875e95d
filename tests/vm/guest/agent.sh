#!/bin/sh
# In the guest, started by agent.service: runs jobs from the second disk, and says on the console how each ended.
#
# The guest is saved after "READY", while this waits for a disk that is not empty; a restored one has it. Its clock
# stands at the moment when it was saved: the file `run` was made now. After "EXIT" who started the guest ends it, or
# empties the disk, for a state in which that job was done.
stty -F /dev/ttyS0 -opost
systemctl is-system-running --wait
mkdir /job
while :; do
    mount -t tmpfs -o mode=755 job /job
    cd /job || exit
    echo READY
    until tar --warning=no-timestamp -xf /dev/vdb && [ -e run ]; do sleep 0.1; done
    date --set "@$(stat --format %Y run)" >/dev/null
    sh ./run
    printf '\nEXIT %s\n' "$?"
    while [ -n "$(head --bytes 512 /dev/vdb | tr -d '\000')" ]; do sleep 0.1; done
    cd /
    umount /job
done
