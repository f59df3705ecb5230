package source

import (
	"maps"
	"slices"
	"strings"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/fault"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
)

func (m *Manager) ConfigMap(namespace, name string) (*v1.ConfigMap, error) {
	return find[v1.ConfigMap](m, "configmap", namespace, name)
}

func (m *Manager) Secret(namespace, name string) (*v1.Secret, error) {
	return find[v1.Secret](m, "secret", namespace, name)
}

// Claim returns a claim, also one of a StatefulSet.
func (m *Manager) Claim(namespace, name string) (*v1.PersistentVolumeClaim, error) {
	claim, err := find[v1.PersistentVolumeClaim](m, "persistentvolumeclaim", namespace, name)
	if err == nil {
		return claim, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range m.objects {
		if s, ok := o.(*appsv1.StatefulSet); ok && s.Namespace == namespace {
			if claim := manifest.ClaimOf(s, name); claim != nil {
				return claim, nil
			}
		}
	}
	return nil, err
}

func (m *Manager) RuntimeClass(name string) (*nodev1.RuntimeClass, error) {
	return find[nodev1.RuntimeClass](m, "runtimeclass", "", name)
}

// find returns an object, or fault.NotFound.
func find[T any](m *Manager, kind, namespace, name string) (*T, error) {
	key := kind + " " + name
	if namespace != "" {
		key = kind + " " + namespace + "/" + name
	}
	m.mu.Lock()
	o := m.objects[key]
	m.mu.Unlock()
	if found, ok := any(o).(*T); ok {
		return found, nil
	}
	return nil, fault.NotFound.Errorf("there is no %s", key)
}

// List returns all objects of a kind, ordered by key. Pods include those of workloads, and
// workloads have their status.
func (m *Manager) List(kind string) []manifest.Object {
	var list []manifest.Object
	if kind == "Pod" {
		for _, pod := range m.Pods() {
			list = append(list, pod)
		}
		return list
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(m.objects)) {
		if manifest.KindOf(m.objects[key]) == kind {
			list = append(list, m.shownLocked(key))
		}
	}
	return list
}

// Object returns the object with this manifest.Key, as List does; nil if it does not exist.
func (m *Manager) Object(key string) manifest.Object {
	m.mu.Lock()
	defer m.mu.Unlock()
	rest, isPod := strings.CutPrefix(key, "pod ")
	if !isPod {
		return m.shownLocked(key)
	}
	namespace, name, _ := strings.Cut(rest, "/")
	if pod := m.pods[podsync.Key{Namespace: namespace, Name: name}]; pod != nil {
		return pod
	}
	return nil
}

func (m *Manager) shownLocked(key string) manifest.Object {
	if plan, ok := m.expanded[key]; ok && plan.Status != nil {
		return plan.Status
	}
	return m.objects[key]
}

// Expired returns the workloads to delete, see Plan.
func (m *Manager) Expired() []manifest.Object {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []manifest.Object
	for key, plan := range m.expanded {
		if plan.Expired {
			list = append(list, m.objects[key])
		}
	}
	return list
}

type FileState struct {
	Source   string   `json:"source"`
	Path     string   `json:"path"`
	Objects  []string `json:"objects,omitempty"` // "pod default/web"
	Error    string   `json:"error,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

type SourceState struct {
	Name     string      `json:"name"`
	Reported bool        `json:"reported"`
	Files    []FileState `json:"files,omitempty"`
}

// Broken returns what is wrong with the manifests of sources.
func Broken(list []SourceState) (errs []string) {
	for _, s := range list {
		for _, f := range s.Files {
			if f.Error != "" {
				errs = append(errs, f.Error)
			}
		}
	}
	return errs
}

func (m *Manager) Sources() []SourceState {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []SourceState
	for _, name := range m.sources {
		files, reported := m.files[name]
		state := SourceState{Name: name, Reported: reported}
		for _, f := range files {
			state.Files = append(state.Files, m.fileStateLocked(name, f))
		}
		list = append(list, state)
	}
	return list
}

func (m *Manager) fileStateLocked(name string, f File) FileState {
	state := FileState{Source: name, Path: f.Path}
	for _, o := range f.Objects {
		state.Objects = append(state.Objects, manifest.Key(o))
		if plan, ok := m.expanded[manifest.Key(o)]; ok && manifest.IsWorkload(o) {
			for _, pod := range plan.Pods {
				state.Objects = append(state.Objects, "pod "+pod.Namespace+"/"+pod.Name)
			}
		}
	}
	if err := m.errorLocked(name, f); err != nil {
		state.Error = err.Error()
	}
	for _, w := range f.Warnings {
		state.Warnings = append(state.Warnings, w.Error())
	}
	return state
}
