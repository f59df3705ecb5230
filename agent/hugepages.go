package agent

import (
	"context"

	"github.com/crisp-cri/crisp/agent/cgroup"
	"github.com/crisp-cri/crisp/agent/crix"
	"github.com/crisp-cri/crisp/agent/status"
	v1 "k8s.io/api/core/v1"
)

// limitHugePages has the cgroups of pods limit huge pages, once they are made. A
// resize does not change how many a pod may have.
func (c *care) limitHugePages() {
	if c.cgroups == nil {
		return
	}
	prepare := c.driver.Prepare
	c.driver.Prepare = func(ctx context.Context, pod *v1.Pod) error {
		if err := prepare(ctx, pod); err != nil {
			return err
		}
		pages := cgroup.HugePages(c.driver.Requests(pod))
		if err := c.cgroups.LimitHugePages(string(pod.UID), status.QOS(pod), pages); err != nil {
			return crix.Reasoned("FailedCreatePodContainer", err)
		}
		return nil
	}
}
