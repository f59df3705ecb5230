package manifest

import (
	"strings"
)

// support is how crisp treats a field.
type support uint8

const (
	rejected support = iota // reported as an error
	honoured                // crisp acts upon it
	ignored                 // accepted without effect: it has no meaning on a single node
)

// fields says, for each kind, how crisp treats a field. A field without a line is rejected as not
// supported. A line also covers the fields below it, unless a longer line says otherwise; "[]"
// stands for any index or key. The text after the word is the reason of a rejection, and otherwise
// a remark.
//
// The lines of Pod also apply to pod templates, those of containers[] to initContainers[] and
// ephemeralContainers[] unless these have a line of their own, and those of "every kind" to every
// kind. The reference in docs/agent.md is generated from this table (go test ./agent/manifest -run
// TestDocument -update).
var fields = parseTable(`
# every kind
apiVersion                                        honoured
kind                                              honoured
metadata.name                                     honoured
metadata.namespace                                honoured
metadata.labels                                   honoured
metadata.annotations                              honoured
metadata.creationTimestamp                        ignored  the agent sets it
metadata.generation                               ignored  the agent sets it
metadata.managedFields                            ignored
metadata.finalizers                               rejected nothing would remove them
metadata.generateName                             rejected give the object a name
metadata.ownerReferences                          rejected there is no garbage collector
metadata.resourceVersion                          ignored  the agent sets it
metadata.selfLink                                 ignored
metadata.uid                                      rejected the agent computes it
status                                            rejected the agent writes it

# Pod
spec.activeDeadlineSeconds                        honoured
spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution ignored
spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution honoured
spec.affinity.podAffinity                         ignored
spec.affinity.podAntiAffinity                     ignored
spec.automountServiceAccountToken                 ignored
spec.containers[].args                            honoured
spec.containers[].command                         honoured
spec.containers[].env[].name                      honoured
spec.containers[].env[].value                     honoured
spec.containers[].env[].valueFrom.configMapKeyRef honoured
spec.containers[].env[].valueFrom.fieldRef        honoured
spec.containers[].env[].valueFrom.fileKeyRef      honoured
spec.containers[].env[].valueFrom.resourceFieldRef honoured
spec.containers[].env[].valueFrom.secretKeyRef    honoured
spec.containers[].envFrom                         honoured
spec.containers[].image                           honoured
spec.containers[].imagePullPolicy                 honoured
spec.containers[].name                            honoured
spec.containers[].ports                           honoured
spec.containers[].lifecycle                       honoured
spec.containers[].lifecycle.postStart.httpGet.protocol rejected alpha in Kubernetes 1.37, and not followed here
spec.containers[].lifecycle.preStop.httpGet.protocol rejected alpha in Kubernetes 1.37, and not followed here
spec.containers[].livenessProbe                   honoured
spec.containers[].livenessProbe.grpc.mode         rejected alpha in Kubernetes 1.37, and not followed here
spec.containers[].livenessProbe.httpGet.protocol  rejected alpha in Kubernetes 1.37, and not followed here
spec.containers[].readinessProbe                  honoured
spec.containers[].readinessProbe.grpc.mode        rejected alpha in Kubernetes 1.37, and not followed here
spec.containers[].readinessProbe.httpGet.protocol rejected alpha in Kubernetes 1.37, and not followed here
spec.containers[].resizePolicy                    honoured
spec.containers[].restartPolicy                   honoured
spec.containers[].restartPolicyRules              honoured
spec.containers[].startupProbe                    honoured
spec.containers[].startupProbe.grpc.mode          rejected alpha in Kubernetes 1.37, and not followed here
spec.containers[].startupProbe.httpGet.protocol   rejected alpha in Kubernetes 1.37, and not followed here
spec.containers[].terminationMessagePath          honoured
spec.containers[].terminationMessagePolicy        honoured
spec.containers[].resources.limits                honoured
spec.containers[].resources.requests              honoured
spec.containers[].resources.claims                rejected needs device claims, which crisp does not have
spec.containers[].securityContext.allowPrivilegeEscalation  honoured
spec.containers[].securityContext.capabilities    honoured
spec.containers[].securityContext.privileged      honoured
spec.containers[].securityContext.procMount       honoured
spec.containers[].securityContext.readOnlyRootFilesystem    honoured
spec.containers[].securityContext.runAsGroup      honoured
spec.containers[].securityContext.runAsNonRoot    honoured
spec.containers[].securityContext.runAsUser       honoured
spec.containers[].securityContext.seccompProfile  honoured
spec.containers[].securityContext.appArmorProfile honoured
spec.containers[].securityContext.seLinuxOptions  honoured
spec.containers[].securityContext.windowsOptions  rejected crisp runs Linux containers
spec.containers[].stdin                           honoured
spec.containers[].stdinOnce                       honoured
spec.containers[].tty                             honoured
spec.containers[].volumeDevices                   rejected needs block volumes, which crisp does not have
spec.containers[].volumeMounts[].mountPath        honoured
spec.containers[].volumeMounts[].mountPropagation honoured
spec.containers[].volumeMounts[].name             honoured
spec.containers[].volumeMounts[].readOnly         honoured
spec.containers[].volumeMounts[].recursiveReadOnly honoured
spec.containers[].volumeMounts[].subPath          honoured
spec.containers[].volumeMounts[].subPathExpr      honoured
spec.containers[].workingDir                      honoured
spec.dnsConfig                                    honoured
spec.dnsPolicy                                    honoured
spec.enableServiceLinks                           ignored
spec.ephemeralContainers                          rejected they are added to a running pod (crisp debug), not to a manifest
spec.hostAliases                                  honoured
spec.hostIPC                                      honoured
spec.hostNetwork                                  honoured
spec.hostPID                                      honoured
spec.hostname                                     honoured
spec.hostnameOverride                             honoured
spec.imagePullSecrets                             honoured
spec.hostUsers                                    honoured
spec.initContainers                               honoured
spec.nodeName                                     honoured
spec.nodeSelector                                 honoured
spec.os                                           honoured
spec.overhead                                     honoured it must be its RuntimeClass's
spec.preemptionPolicy                             ignored
spec.priority                                     honoured
spec.priorityClassName                            honoured system-node-critical and system-cluster-critical; another needs spec.priority beside it
spec.resources                                    honoured
spec.resources.claims                             rejected needs device claims, which crisp does not have
spec.readinessGates                               rejected nothing would set the conditions
spec.resourceClaims                               rejected needs device claims, which crisp does not have
spec.restartPolicy                                honoured
spec.schedulerName                                ignored
spec.schedulingGates                              rejected there is no scheduler that would wait
spec.schedulingGroup                              ignored
spec.securityContext.fsGroup                      honoured
spec.securityContext.fsGroupChangePolicy          honoured
spec.securityContext.runAsGroup                   honoured
spec.securityContext.runAsNonRoot                 honoured
spec.securityContext.runAsUser                    honoured
spec.securityContext.seccompProfile               honoured
spec.securityContext.seLinuxChangePolicy          ignored
spec.securityContext.supplementalGroups           honoured
spec.securityContext.sysctls                      honoured
spec.securityContext.appArmorProfile              honoured
spec.securityContext.seLinuxOptions               honoured
spec.securityContext.supplementalGroupsPolicy     honoured
spec.securityContext.windowsOptions               rejected crisp runs Linux containers
spec.serviceAccount                               honoured
spec.serviceAccountName                           honoured
spec.runtimeClassName                             honoured
spec.setHostnameAsFQDN                            honoured
spec.shareProcessNamespace                        honoured
spec.subdomain                                    honoured
spec.terminationGracePeriodSeconds                honoured
spec.tolerations                                  ignored
spec.topologySpreadConstraints                    ignored
spec.volumes[].configMap                          honoured
spec.volumes[].configMap.defaultUser              rejected alpha in Kubernetes 1.37, and not followed here
spec.volumes[].configMap.items[].user             rejected alpha in Kubernetes 1.37, and not followed here
spec.volumes[].downwardAPI                        honoured
spec.volumes[].downwardAPI.defaultUser            rejected alpha in Kubernetes 1.37, and not followed here
spec.volumes[].downwardAPI.items[].user           rejected alpha in Kubernetes 1.37, and not followed here
spec.volumes[].emptyDir                           honoured
spec.volumes[].emptyDir.mode                      rejected alpha in Kubernetes 1.37, and not followed here
spec.volumes[].hostPath                           honoured
spec.volumes[].image                              honoured
spec.volumes[].name                               honoured
spec.volumes[].persistentVolumeClaim              honoured
spec.volumes[].projected.defaultMode              honoured
spec.volumes[].projected.sources[].configMap      honoured
spec.volumes[].projected.sources[].configMap.items[].user rejected alpha in Kubernetes 1.37, and not followed here
spec.volumes[].projected.sources[].downwardAPI    honoured
spec.volumes[].projected.sources[].downwardAPI.items[].user rejected alpha in Kubernetes 1.37, and not followed here
spec.volumes[].projected.sources[].secret         honoured
spec.volumes[].projected.sources[].secret.items[].user rejected alpha in Kubernetes 1.37, and not followed here
spec.volumes[].projected.sources[].clusterTrustBundle rejected needs an API server
spec.volumes[].projected.sources[].podCertificate rejected needs an API server that signs
spec.volumes[].projected.sources[].serviceAccountToken rejected needs an API server that issues tokens
spec.volumes[].secret                             honoured
spec.volumes[].secret.defaultUser                 rejected alpha in Kubernetes 1.37, and not followed here
spec.volumes[].secret.items[].user                rejected alpha in Kubernetes 1.37, and not followed here
spec.volumes[].awsElasticBlockStore               rejected needs a cloud
spec.volumes[].azureDisk                          rejected needs a cloud
spec.volumes[].azureFile                          rejected needs a cloud
spec.volumes[].cephfs                             rejected no longer in Kubernetes
spec.volumes[].cinder                             rejected needs a cloud
spec.volumes[].csi                                rejected needs a CSI driver, which crisp does not load
spec.volumes[].ephemeral                          rejected needs a provisioner, which crisp does not have
spec.volumes[].fc                                 rejected needs a block device attached: mount it and use hostPath
spec.volumes[].flexVolume                         rejected no longer in Kubernetes
spec.volumes[].flocker                            rejected no longer in Kubernetes
spec.volumes[].gcePersistentDisk                  rejected needs a cloud
spec.volumes[].gitRepo                            rejected clone in an init container instead
spec.volumes[].glusterfs                          rejected no longer in Kubernetes
spec.volumes[].nfs                                rejected not supported: mount it and use hostPath
spec.volumes[].iscsi                              rejected needs a block device attached: mount it and use hostPath
spec.volumes[].photonPersistentDisk               rejected needs a cloud
spec.volumes[].portworxVolume                     rejected needs a cloud
spec.volumes[].quobyte                            rejected no longer in Kubernetes
spec.volumes[].rbd                                rejected no longer in Kubernetes
spec.volumes[].scaleIO                            rejected no longer in Kubernetes
spec.volumes[].storageos                          rejected no longer in Kubernetes
spec.volumes[].vsphereVolume                      rejected needs a cloud

# ConfigMap
binaryData                                        honoured
data                                              honoured
immutable                                         honoured

# Secret
data                                              honoured
immutable                                         honoured
stringData                                        honoured
type                                              honoured

# RuntimeClass
handler                                           honoured
overhead                                          honoured
scheduling                                        ignored

# PersistentVolumeClaim
spec.accessModes                                  honoured
spec.dataSource                                   rejected there is nothing that would fill the volume
spec.dataSourceRef                                rejected there is nothing that would fill the volume
spec.resources.requests                           ignored  the directory is as large as its file system
spec.resources.limits                             ignored  the directory is as large as its file system
spec.selector                                     rejected there are no volumes to choose from
spec.storageClassName                             ignored  every claim is a directory of this node
spec.volumeAttributesClassName                    rejected there are no classes
spec.volumeMode                                   honoured
spec.volumeName                                   rejected there are no volumes to name

# Deployment
spec.minReadySeconds                              honoured
spec.paused                                       honoured
spec.progressDeadlineSeconds                      ignored
spec.replicas                                     honoured
spec.revisionHistoryLimit                         honoured
spec.selector                                     honoured
spec.strategy.rollingUpdate.maxSurge              honoured
spec.strategy.rollingUpdate.maxUnavailable        honoured
spec.strategy.type                                honoured
spec.template                                     honoured

# DaemonSet
spec.minReadySeconds                              ignored
spec.revisionHistoryLimit                         honoured
spec.selector                                     honoured
spec.template                                     honoured
spec.updateStrategy                               ignored  the one pod is replaced

# Job
spec.activeDeadlineSeconds                        honoured
spec.backoffLimit                                 honoured
spec.backoffLimitPerIndex                         rejected not supported: backoffLimit counts all pods
spec.completionMode                               honoured
spec.completions                                  honoured
spec.managedBy                                    rejected the agent runs the job
spec.manualSelector                               rejected the selector is the agent's
spec.maxFailedIndexes                             rejected not supported: backoffLimit counts all pods
spec.parallelism                                  honoured
spec.podFailurePolicy                             rejected not supported: every failure counts
spec.podReplacementPolicy                         rejected not supported: a pod is replaced when it has failed
spec.selector                                     rejected the selector is the agent's
spec.successPolicy                                rejected not supported: all completions count
spec.suspend                                      honoured
spec.template                                     honoured
spec.ttlSecondsAfterFinished                      honoured

# Namespace
metadata                                          ignored  every namespace is there
spec                                              ignored
status                                            ignored
`)

const notYet = "not supported yet"

// everyKind is the heading of the lines that apply to all kinds.
const everyKind = "every kind"

type fieldRule struct {
	support support
	text    string
}

// A fieldTable has the rules of one kind.
type fieldTable struct {
	order []string             // the paths, as in the table
	rules map[string]fieldRule // by path
	inner map[string]bool      // paths above those of rules, which are honoured
}

var supportWords = map[string]support{"rejected": rejected, "honoured": honoured, "ignored": ignored}

func parseTable(text string) map[string]*fieldTable {
	tables := map[string]*fieldTable{}
	var current *fieldTable
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if kind, ok := strings.CutPrefix(line, "# "); ok {
			current = &fieldTable{rules: map[string]fieldRule{}, inner: map[string]bool{}}
			tables[kind] = current
			continue
		}
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		s, ok := supportWords[words[1]]
		if !ok || s == rejected && len(words) < 3 {
			panic("manifest: bad line in the table of fields: " + line)
		}
		current.add(words[0], fieldRule{s, strings.Join(words[2:], " ")})
	}
	return tables
}

func (t *fieldTable) add(path string, rule fieldRule) {
	t.order = append(t.order, path)
	t.rules[path] = rule
	for i, r := range path {
		if r == '.' || r == '[' {
			t.inner[path[:i]] = true
			if r == '[' {
				t.inner[path[:i+2]] = true
			}
		}
	}
}

// supportOf returns the rule for a path such as "spec.containers[].image" in an object of
// this kind.
func supportOf(kind, path string) fieldRule {
	if rest, ok := strings.CutPrefix(path, "spec.template."); ok && kind != "Pod" {
		return supportOf("Pod", rest)
	}
	for _, list := range []string{"initContainers", "ephemeralContainers"} {
		rest, ok := strings.CutPrefix(path, "spec."+list+"[]")
		if !ok || kind != "Pod" {
			continue
		}
		if rule, ok := fields[kind].rules[path]; ok {
			return rule
		}
		path = "spec.containers[]" + rest
	}
	for p := path; p != ""; {
		for _, table := range []string{kind, everyKind} {
			if rule, ok := fields[table].rules[p]; ok {
				return rule
			}
			if p == path && fields[table].inner[p] {
				return fieldRule{support: honoured}
			}
		}
		i := strings.LastIndexAny(p, ".[")
		if i < 0 {
			break
		}
		p = p[:i]
	}
	return fieldRule{rejected, notYet}
}
