package criruntime

import (
	"context"
	"os"
)

// FollowResolvConf brings a change of the node's name servers to the pods that run: it may have had
// none when they began, at a boot before the network was there. It is called periodically, by one
// goroutine.
func (d *Driver) FollowResolvConf(ctx context.Context) {
	own, err := os.ReadFile(d.o.ResolvConf)
	if err != nil {
		return // it is being replaced, or pods have none of it
	}
	behind, _ := os.ReadFile(d.resolved)
	now := string(own) + "\x00" + string(behind)
	if now == d.followed {
		return
	}
	for _, pod := range d.files.Accepted() {
		in := d.sized(pod)
		if in.DNS, err = d.nodeDNS(pod); err != nil {
			return
		}
		if text, follows := in.ResolvConf(); follows {
			err = d.files.WriteResolvConf(string(pod.UID), text, true)
		}
		if err != nil {
			if d.failed != err.Error() {
				d.failed = err.Error()
				d.o.Log.WarnContext(ctx, "resolv.conf of a pod does not follow the node's", "pod", pod.Name, "err", err)
			}
			return // the next call tries again
		}
	}
	d.followed, d.failed = now, ""
}
