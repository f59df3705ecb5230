package podfiles

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"

	"github.com/crisp-cri/crisp/internal/atomicfile"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// agentFile, in an agent's root, says who the agent is, and names the runtime that it uses.
const agentFile = "agent.json"

type agentRecord struct {
	Endpoint string `json:"runtimeEndpoint"`
	NodeName string `json:"nodeName,omitempty"`
	ID       string `json:"id,omitempty"`
}

func readAgent(root string) (record agentRecord) {
	_ = atomicfile.ReadJSON(filepath.Join(root, agentFile), &record) // a broken one is as none
	return record
}

// RecordAgent records the runtime, the node and the ID of an agent in its root. It writes only what
// differs.
func RecordAgent(root, endpoint, node string) error {
	now := agentRecord{endpoint, node, AgentID(root)}
	if readAgent(root) == now {
		return nil
	}
	return atomicfile.WriteJSON(filepath.Join(root, agentFile), now)
}

// NodeName returns the name of the node that the last agent of this root recorded, "" if none did.
func NodeName(root string) string { return readAgent(root).NodeName }

// AgentID returns an ID that is the same for every agent on this root directory, also when that has
// been moved, and differs from those on other roots.
func AgentID(root string) string {
	if id := readAgent(root).ID; id != "" {
		return id
	}
	sum := sha256.Sum256([]byte(root))
	return hex.EncodeToString(sum[:6])
}

// Waiting returns the pods that the agent of this root has accepted and that have no sandbox
// yet, because a volume is missing or the network is not ready: those whose UIDs are not in
// known, the UIDs of the runtime's pods. It returns none if the agent uses another runtime than
// endpoint or its files cannot be read.
func Waiting(root, endpoint string, known map[string]bool) []*v1.Pod {
	if record := readAgent(root); record.Endpoint == "" || record.Endpoint != endpoint {
		return nil
	}
	entries, err := os.ReadDir(filepath.Join(root, "pods"))
	if err != nil {
		return nil
	}
	var list []*v1.Pod
	for _, e := range entries {
		if known[e.Name()] {
			continue
		}
		dir := filepath.Join(root, "pods", e.Name())
		info, err := os.Stat(filepath.Join(dir, podFile))
		pod := &v1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
		if err != nil || atomicfile.ReadJSON(filepath.Join(dir, podFile), pod) != nil || pod.Name == "" {
			continue
		}
		pod.CreationTimestamp = metav1.Time{Time: info.ModTime()}
		pod.Status.Phase = v1.PodPending
		status, ending := Kept(dir)
		if status != nil {
			pod.Status = *status
		}
		if ending != nil {
			pod.DeletionTimestamp = ending
		}
		list = append(list, pod)
	}
	return list
}
