package crix

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"hash/fnv"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
)

// The labels and annotations of the kubelet, which tools look for, and ours.
const (
	LabelPodName       = "io.kubernetes.pod.name"
	LabelPodNamespace  = "io.kubernetes.pod.namespace"
	LabelPodUID        = "io.kubernetes.pod.uid"
	LabelContainerName = "io.kubernetes.container.name"

	annotationHash         = "io.kubernetes.container.hash"
	annotationRestartCount = "io.kubernetes.container.restartCount"
	annotationPorts        = "io.kubernetes.container.ports"
	annotationGrace        = "io.kubernetes.pod.terminationGracePeriod" // seconds

	// LabelSource says where the pod comes from: "file".
	LabelSource = "io.crisp.pod.source"
	// labelAgent keeps the pods of two agents on one runtime apart, and the
	// kubelet's: an agent sees and ends only what carries its own value.
	labelAgent = "io.crisp.agent"

	// What "crisp get" must know of a pod while no agent runs.
	AnnotationDir            = "io.crisp.pod.dir"            // directory of status.json
	AnnotationContainers     = "io.crisp.pod.containers"     // names, comma-separated
	AnnotationInitContainers = "io.crisp.pod.initContainers" // likewise
	AnnotationRestartPolicy  = "io.crisp.pod.restartPolicy"

	annotationBackoff = "io.crisp.container.backoff" // that preceded its start; a time.Duration
)

// agentID is the same for each agent on this root directory, and another for
// every other.
func agentID(root string) string {
	sum := sha256.Sum256([]byte(root))
	return hex.EncodeToString(sum[:6])
}

// mine selects the pods of this agent.
func (d *Driver) mine() map[string]string { return map[string]string{labelAgent: d.agent} }

// of selects the pods of this agent with this key, whatever their UID.
func (d *Driver) of(key podsync.Key) map[string]string {
	return map[string]string{labelAgent: d.agent, LabelPodNamespace: key.Namespace, LabelPodName: key.Name}
}

func (d *Driver) sandboxLabels(pod *v1.Pod) map[string]string {
	labels := map[string]string{}
	maps.Copy(labels, pod.Labels)
	maps.Copy(labels, map[string]string{
		LabelPodName:      pod.Name,
		LabelPodNamespace: pod.Namespace,
		LabelPodUID:       string(pod.UID),
		LabelSource:       pod.Annotations[manifest.AnnotationSource],
		labelAgent:        d.agent,
	})
	return labels
}

func (d *Driver) sandboxAnnotations(pod *v1.Pod) map[string]string {
	annotations := map[string]string{}
	maps.Copy(annotations, pod.Annotations)
	annotations[AnnotationDir] = d.podDir(string(pod.UID))
	annotations[AnnotationContainers] = names(pod.Spec.Containers)
	annotations[AnnotationInitContainers] = names(pod.Spec.InitContainers)
	annotations[AnnotationRestartPolicy] = string(pod.Spec.RestartPolicy)
	return annotations
}

func names(containers []v1.Container) string {
	list := make([]string, len(containers))
	for i := range containers {
		list[i] = containers[i].Name
	}
	return strings.Join(list, ",")
}

func (d *Driver) containerLabels(pod *v1.Pod, c *v1.Container) map[string]string {
	return map[string]string{
		LabelPodName:       pod.Name,
		LabelPodNamespace:  pod.Namespace,
		LabelPodUID:        string(pod.UID),
		LabelContainerName: c.Name,
		LabelSource:        pod.Annotations[manifest.AnnotationSource],
		labelAgent:         d.agent,
	}
}

func containerAnnotations(pod *v1.Pod, c *v1.Container, a podsync.Action) map[string]string {
	annotations := map[string]string{
		annotationHash:         containerHash(c),
		annotationRestartCount: strconv.Itoa(int(a.Attempt)),
		annotationGrace:        strconv.FormatInt(*pod.Spec.TerminationGracePeriodSeconds, 10),
		annotationBackoff:      a.Backoff.String(),
	}
	if len(c.Ports) > 0 {
		if ports, err := json.Marshal(c.Ports); err == nil {
			annotations[annotationPorts] = string(ports)
		}
	}
	return annotations
}

func containerHash(c *v1.Container) string {
	data, err := json.Marshal(c)
	if err != nil {
		return ""
	}
	h := fnv.New32a()
	h.Write(data)
	return strconv.FormatUint(uint64(h.Sum32()), 16)
}

// graceOf reads back the grace period that a container was promised. Less than
// two seconds are never granted, as by the kubelet: no program could use them.
func graceOf(annotations map[string]string) time.Duration {
	seconds, err := strconv.ParseInt(annotations[annotationGrace], 10, 64)
	if err != nil {
		seconds = v1.DefaultTerminationGracePeriodSeconds
	}
	return max(time.Duration(seconds)*time.Second, 2*time.Second)
}

func backoffOf(annotations map[string]string) time.Duration {
	backoff, err := time.ParseDuration(annotations[annotationBackoff])
	if err != nil {
		return 0
	}
	return backoff
}
