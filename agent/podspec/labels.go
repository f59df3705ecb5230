package podspec

import (
	"encoding/json"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The labels and annotations of the kubelet, which tools look for, and those of crisp.
const (
	LabelPodName       = "io.kubernetes.pod.name"
	LabelPodNamespace  = "io.kubernetes.pod.namespace"
	LabelPodUID        = "io.kubernetes.pod.uid"
	LabelContainerName = "io.kubernetes.container.name"

	AnnotationHash          = "io.kubernetes.container.hash"
	annotationRestartCount  = "io.kubernetes.container.restartCount"
	annotationPorts         = "io.kubernetes.container.ports"
	annotationGrace         = "io.kubernetes.pod.terminationGracePeriod" // seconds
	annotationDeletion      = "io.kubernetes.pod.deletionGracePeriod"    // seconds; overrides the former
	AnnotationMessagePath   = "io.kubernetes.container.terminationMessagePath"
	AnnotationMessagePolicy = "io.kubernetes.container.terminationMessagePolicy"
	annotationPreStop       = "io.kubernetes.container.preStopHandler"

	// LabelSource is the source of the pod: "file", "http" or "api".
	LabelSource = "io.crisp.pod.source"
	// LabelAgent distinguishes the pods of several agents on one runtime, and those of a
	// kubelet, which have none: an agent sees and ends only pods with its own value.
	LabelAgent = "io.crisp.agent"

	// The state that "crisp get" needs while no agent runs.
	AnnotationDir            = "io.crisp.pod.dir"            // directory of status.json
	AnnotationContainers     = "io.crisp.pod.containers"     // names, comma-separated
	AnnotationInitContainers = "io.crisp.pod.initContainers" // likewise
	AnnotationRestartPolicy  = "io.crisp.pod.restartPolicy"

	annotationBackoff = "io.crisp.container.backoff" // before its start, as by Duration.String
)

// labels returns others with the labels by which an agent finds its sandboxes and containers.
func (in *Input) labels(others map[string]string) map[string]string {
	pod, labels := in.Pod, map[string]string{}
	maps.Copy(labels, others)
	labels[LabelPodName] = pod.Name
	labels[LabelPodNamespace] = pod.Namespace
	labels[LabelPodUID] = string(pod.UID)
	labels[LabelSource] = pod.Annotations[manifest.AnnotationSource]
	labels[LabelAgent] = in.Node.Agent
	return labels
}

func (in *Input) sandboxAnnotations() map[string]string {
	pod := in.Pod
	annotations := map[string]string{}
	maps.Copy(annotations, pod.Annotations)
	annotations[AnnotationDir] = in.Dir
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

func containerAnnotations(pod *v1.Pod, container *Container) (map[string]string, error) {
	c := container.Spec
	annotations := map[string]string{
		AnnotationHash:          podsync.Hash(c),
		annotationRestartCount:  strconv.Itoa(int(container.Attempt)),
		AnnotationMessagePath:   c.TerminationMessagePath,
		AnnotationMessagePolicy: string(c.TerminationMessagePolicy),
		annotationBackoff:       container.Backoff.String(),
	}
	for name, value := range pod.Annotations { // the devices of all containers
		if strings.HasPrefix(name, "cdi.k8s.io/") {
			annotations[name] = value
		}
	}
	if grace := pod.DeletionGracePeriodSeconds; grace != nil {
		annotations[annotationDeletion] = strconv.FormatInt(*grace, 10)
	}
	if grace := pod.Spec.TerminationGracePeriodSeconds; grace != nil {
		annotations[annotationGrace] = strconv.FormatInt(*grace, 10)
	}
	restored := map[string]any{}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		restored[annotationPreStop] = c.Lifecycle.PreStop
	}
	if len(c.Ports) > 0 {
		restored[annotationPorts] = c.Ports
	}
	for name, value := range restored {
		data, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		annotations[name] = string(data)
	}
	return annotations, nil
}

// Restored returns a container and its pod from the container's labels and annotations: enough
// to run the preStop hook when the pod is no longer known.
func Restored(labels, annotations map[string]string) (*v1.Pod, *v1.Container) {
	pod := &v1.Pod{}
	pod.Name, pod.Namespace, pod.UID = labels[LabelPodName], labels[LabelPodNamespace], types.UID(labels[LabelPodUID])
	c := &v1.Container{Name: labels[LabelContainerName]}
	// An annotation that cannot be read counts as missing: the container must end anyway.
	json.Unmarshal([]byte(annotations[annotationPorts]), &c.Ports)
	var hook v1.LifecycleHandler
	if json.Unmarshal([]byte(annotations[annotationPreStop]), &hook) == nil {
		c.Lifecycle = &v1.Lifecycle{PreStop: &hook}
	}
	pod.Spec.Containers = []v1.Container{*c}
	return pod, c
}

// GraceOf returns the grace period that a container was created with, from its annotations;
// Kubernetes' 30 s if they have none.
func GraceOf(annotations map[string]string) time.Duration {
	for _, name := range []string{annotationDeletion, annotationGrace} {
		if seconds, err := strconv.ParseInt(annotations[name], 10, 64); err == nil {
			return podsync.Seconds(seconds)
		}
	}
	return v1.DefaultTerminationGracePeriodSeconds * time.Second
}

// BackoffOf returns the back-off that preceded the start of a container, from its annotations;
// 0 if they have none.
func BackoffOf(annotations map[string]string) time.Duration {
	backoff, err := time.ParseDuration(annotations[annotationBackoff])
	if err != nil {
		return 0
	}
	return backoff
}
