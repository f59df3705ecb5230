package manifest

import "strings"

type support uint8

const (
	rejected support = iota // reported as an error
	honoured                // crisp acts upon it
	ignored                 // accepted without effect: it has no meaning on a single node
)

// fields says, for each kind, how crisp treats a field. A field without a line is rejected as not
// supported. A line also covers the fields below it, unless a longer line says otherwise; "[]"
// stands for any index or key, and "{a,b}" for either of both. The text after the word is the reason
// of a rejection, and otherwise a remark.
//
// The lines of Pod also apply to pod templates, those of Job to a CronJob's template, those of PersistentVolumeClaim to a StatefulSet's, those of containers[] to initContainers[] and
// ephemeralContainers[] unless these have a line of their own, and those of "every kind" to every
// kind. The reference in docs/fields.md is generated from this table (go test ./agent/manifest -run
// TestDocument -update).
var fields = parseTable(`
# every kind
{apiVersion,kind} honoured
metadata.{name,namespace,labels,annotations} honoured
metadata.{creationTimestamp,generation,resourceVersion} ignored the agent sets it
metadata.{managedFields,selfLink} ignored
metadata.finalizers rejected nothing would remove them
metadata.generateName rejected give the object a name
metadata.ownerReferences rejected there is no garbage collector
metadata.uid rejected the agent computes it
status rejected the agent writes it

# Pod
spec.{activeDeadlineSeconds,dnsConfig,dnsPolicy,hostAliases,hostIPC,hostNetwork,hostPID,hostname} honoured
spec.{hostnameOverride,imagePullSecrets,hostUsers,initContainers,nodeName,nodeSelector,os,priority} honoured
spec.{resources,restartPolicy,serviceAccount,serviceAccountName,runtimeClassName,setHostnameAsFQDN} honoured
spec.{shareProcessNamespace,subdomain,terminationGracePeriodSeconds} honoured
spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution ignored
spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution honoured
spec.affinity.{podAffinity,podAntiAffinity} ignored
spec.{automountServiceAccountToken,enableServiceLinks,preemptionPolicy,schedulerName,schedulingGroup} ignored
spec.{tolerations,topologySpreadConstraints} ignored
spec.containers[].{args,command,envFrom,image,imagePullPolicy,name,ports,lifecycle,livenessProbe} honoured
spec.containers[].{readinessProbe,resizePolicy,restartPolicy,restartPolicyRules,startupProbe} honoured
spec.containers[].{terminationMessagePath,terminationMessagePolicy,stdin,stdinOnce,tty,workingDir} honoured
spec.containers[].env[].{name,value} honoured
spec.containers[].env[].valueFrom.{configMapKeyRef,fieldRef,fileKeyRef,resourceFieldRef,secretKeyRef} honoured
spec.containers[].resources.{limits,requests} honoured
spec.containers[].resources.claims rejected needs device claims, which crisp does not have
spec.containers[].securityContext.{allowPrivilegeEscalation,capabilities,privileged,procMount} honoured
spec.containers[].securityContext.{readOnlyRootFilesystem,runAsGroup,runAsNonRoot,runAsUser,seccompProfile} honoured
spec.containers[].securityContext.{appArmorProfile,seLinuxOptions} honoured
spec.containers[].securityContext.windowsOptions rejected crisp runs Linux containers
spec.containers[].volumeDevices rejected needs block volumes, which crisp does not have
spec.containers[].volumeMounts[].{mountPath,mountPropagation,name,readOnly,recursiveReadOnly,subPath} honoured
spec.containers[].volumeMounts[].subPathExpr honoured
spec.ephemeralContainers rejected they are added to a running pod (crisp debug), not to a manifest
spec.overhead honoured it must be its RuntimeClass's
spec.priorityClassName honoured system-node-critical and system-cluster-critical; another needs spec.priority beside it
spec.resources.claims rejected needs device claims, which crisp does not have
spec.readinessGates rejected nothing would set the conditions
spec.resourceClaims rejected needs device claims, which crisp does not have
spec.schedulingGates rejected there is no scheduler that would wait
spec.securityContext.{fsGroup,fsGroupChangePolicy,runAsGroup,runAsNonRoot,runAsUser,seccompProfile} honoured
spec.securityContext.{supplementalGroups,sysctls,appArmorProfile,seLinuxOptions,supplementalGroupsPolicy} honoured
spec.securityContext.seLinuxChangePolicy ignored
spec.securityContext.windowsOptions rejected crisp runs Linux containers
spec.volumes[].{configMap,downwardAPI,emptyDir,hostPath,image,name,persistentVolumeClaim,secret} honoured
spec.volumes[].projected.defaultMode honoured
spec.volumes[].projected.sources[].{configMap,downwardAPI,secret} honoured
spec.volumes[].projected.sources[].clusterTrustBundle rejected needs an API server
spec.volumes[].projected.sources[].podCertificate rejected needs an API server that signs
spec.volumes[].projected.sources[].serviceAccountToken rejected needs an API server that issues tokens
spec.volumes[].{awsElasticBlockStore,azureDisk,azureFile,cinder,gcePersistentDisk} rejected needs a cloud
spec.volumes[].{photonPersistentDisk,portworxVolume,vsphereVolume} rejected needs a cloud
spec.volumes[].{cephfs,flexVolume,flocker,glusterfs,quobyte,rbd,scaleIO,storageos} rejected no longer in Kubernetes
spec.volumes[].csi rejected needs a CSI driver, which crisp does not load
spec.volumes[].ephemeral rejected needs a provisioner, which crisp does not have
spec.volumes[].{fc,iscsi} rejected needs a block device attached: mount it and use hostPath
spec.volumes[].gitRepo rejected clone in an init container instead
spec.volumes[].nfs rejected not supported: mount it and use hostPath
spec.containers[].lifecycle.{postStart,preStop}.httpGet.protocol rejected alpha in Kubernetes 1.37, and not followed here
spec.containers[].{livenessProbe,readinessProbe,startupProbe}.{grpc.mode,httpGet.protocol} rejected alpha in Kubernetes 1.37, and not followed here
spec.volumes[].{configMap,downwardAPI,secret}.{defaultUser,items[].user} rejected alpha in Kubernetes 1.37, and not followed here
spec.volumes[].emptyDir.mode rejected alpha in Kubernetes 1.37, and not followed here
spec.volumes[].projected.sources[].{configMap,downwardAPI,secret}.items[].user rejected alpha in Kubernetes 1.37, and not followed here

# ConfigMap
{binaryData,data,immutable} honoured

# Secret
{data,immutable,stringData,type} honoured

# RuntimeClass
{handler,overhead} honoured
scheduling ignored there is a warning, since pods are not scheduled, they run on this node

# PersistentVolumeClaim
spec.{accessModes,volumeMode} honoured
spec.{dataSource,dataSourceRef} rejected there is nothing that would fill the volume
spec.resources.{requests,limits} ignored the directory is as large as its file system
spec.selector rejected there are no volumes to choose from
spec.storageClassName ignored every claim is a directory of this node
spec.volumeAttributesClassName rejected there are no classes
spec.volumeName rejected there are no volumes to name

# Service
spec.ports honoured as documentation: the name leads to the pods, whose ports are not translated; there is a warning
spec.{clusterIP,clusterIPs,ipFamilies,ipFamilyPolicy} ignored a name leads to the addresses of the pods
spec.{externalName,type} ignored there is a warning, except for ClusterIP
spec.{publishNotReadyAddresses,selector} honoured
status ignored
spec.{allocateLoadBalancerNodePorts,externalIPs,externalTrafficPolicy,healthCheckNodePort} ignored
spec.{internalTrafficPolicy,loadBalancerClass,loadBalancerIP,loadBalancerSourceRanges} ignored
spec.{sessionAffinity,sessionAffinityConfig,trafficDistribution} ignored

# Deployment
spec.{minReadySeconds,paused,replicas,selector,template} honoured
spec.progressDeadlineSeconds ignored
spec.revisionHistoryLimit ignored former templates are not kept
spec.strategy.rollingUpdate.{maxSurge,maxUnavailable} honoured
spec.strategy.type honoured

# DaemonSet
spec.minReadySeconds ignored
spec.revisionHistoryLimit ignored former templates are not kept
spec.{selector,template} honoured
spec.updateStrategy ignored the one pod is replaced

# StatefulSet
spec.{minReadySeconds,podManagementPolicy,replicas,selector,serviceName,template,volumeClaimTemplates} honoured
spec.ordinals rejected not supported: pods count from 0
spec.persistentVolumeClaimRetentionPolicy.{whenDeleted,whenScaled} honoured Retain
spec.revisionHistoryLimit ignored former templates are not kept
spec.updateStrategy.rollingUpdate.partition honoured 0: all pods are updated, one after the other
spec.updateStrategy.type honoured RollingUpdate

# CronJob
spec.{concurrencyPolicy,failedJobsHistoryLimit,jobTemplate,schedule,startingDeadlineSeconds} honoured
spec.{successfulJobsHistoryLimit,suspend,timeZone} honoured

# Job
spec.{activeDeadlineSeconds,backoffLimit,completionMode,completions,parallelism,suspend,template} honoured
spec.ttlSecondsAfterFinished honoured
spec.{backoffLimitPerIndex,maxFailedIndexes} rejected not supported: backoffLimit counts all pods
spec.managedBy rejected the agent runs the job
spec.{manualSelector,selector} rejected the selector is the agent's
spec.podFailurePolicy rejected not supported: every failure counts
spec.podReplacementPolicy rejected not supported: a pod is replaced when it has failed
spec.successPolicy rejected not supported: all completions count

# Namespace
metadata ignored every namespace is there
{spec,status} ignored
`)

const notYet = "not supported yet"

const everyKind = "every kind"

type fieldRule struct {
	support support
	text    string
}

type fieldTable struct {
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
		for _, path := range choices(words[0]) {
			current.add(path, fieldRule{s, strings.Join(words[2:], " ")})
		}
	}
	return tables
}

// choices returns what a path with "{a,b}" stands for: the paths with a and with b.
func choices(path string) []string {
	before, rest, several := strings.Cut(path, "{")
	if !several {
		return []string{path}
	}
	list, after, _ := strings.Cut(rest, "}")
	var all []string
	for choice := range strings.SplitSeq(list, ",") {
		all = append(all, choices(before+choice+after)...)
	}
	return all
}

func (t *fieldTable) add(path string, rule fieldRule) {
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
	if rest, ok := strings.CutPrefix(path, "spec.jobTemplate."); ok && kind == "CronJob" {
		return supportOf("Job", rest)
	}
	if rest, ok := strings.CutPrefix(path, "spec.volumeClaimTemplates[]."); ok && kind == "StatefulSet" {
		return supportOf("PersistentVolumeClaim", rest)
	}
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
