package criruntime

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/crisp-cri/crisp/agent/podspec"
	"github.com/crisp-cri/crisp/agent/podsync"
)

// agentID returns an ID that is the same for every agent on this root directory, and differs
// from those on other roots.
func agentID(root string) string {
	sum := sha256.Sum256([]byte(root))
	return hex.EncodeToString(sum[:6])
}

// mine selects the pods of this agent.
func (d *Driver) mine() map[string]string { return map[string]string{podspec.LabelAgent: d.agent} }

// of selects the pods of this agent with this key, whatever their UID.
func (d *Driver) of(key podsync.Key) map[string]string {
	return map[string]string{podspec.LabelAgent: d.agent, podspec.LabelPodNamespace: key.Namespace, podspec.LabelPodName: key.Name}
}
