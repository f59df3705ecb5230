package kubectl

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/source"
	"github.com/crisp-cri/crisp/apiserver/api"
	"github.com/crisp-cri/crisp/apiserver/workload"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// known has the same status for all pods, and no files.
type known struct{ status *v1.PodStatus }

func (k known) Get(types.UID) *v1.PodStatus { return k.status }

func (k known) Last(*v1.Pod) *v1.PodStatus { return k.status }

func (known) Accepted() []*v1.Pod { return nil }

func (known) LogDir(*v1.Pod) string { return "" }

func (known) EndingSince(types.UID) time.Time { return time.Time{} }

// kubectl prints the table's cells as they are: RESTARTS includes the time of the last restart.
func TestTableOfPods(t *testing.T) {
	wanted := source.NewManager([]string{manifest.SourceFile}, workload.Expand)
	objects, _, err := manifest.Read("web.yaml", []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: a, image: i}]}\n"), manifest.Options{NodeName: "n1", Source: manifest.SourceFile})
	if err != nil {
		t.Fatal(err)
	}
	wanted.Update(source.Update{Source: manifest.SourceFile, Files: []source.File{{Path: "web.yaml", Objects: objects}}})
	ended := &v1.ContainerStateTerminated{FinishedAt: metav1.NewTime(time.Now().Add(-100*time.Hour - 30*time.Minute))}
	status := &v1.PodStatus{
		Phase:             v1.PodRunning,
		Conditions:        []v1.PodCondition{{Type: v1.PodInitialized, Status: v1.ConditionTrue}},
		ContainerStatuses: []v1.ContainerStatus{{Ready: true, RestartCount: 3, LastTerminationState: v1.ContainerState{Terminated: ended}}},
	}
	s := api.New(api.Options{
		Wanted: wanted, Log: slog.New(slog.DiscardHandler),
		Statuses: known{status}, Files: known{},
	})
	r := httptest.NewRequest(http.MethodGet, "/api/v1/pods", nil)
	r.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	w := httptest.NewRecorder()
	New(s, nil, "").ServeHTTP(w, r)
	var table metav1.Table
	if err := json.Unmarshal(w.Body.Bytes(), &table); err != nil || len(table.Rows) != 1 {
		t.Fatalf("%d rows, %v: %s", len(table.Rows), err, w.Body)
	}
	want := map[string]any{"Name": "web", "Ready": "1/1", "Status": "Running", "Restarts": "3 (4d4h ago)"}
	for i, c := range table.ColumnDefinitions {
		if text, ok := want[c.Name]; ok && (table.Rows[0].Cells[i] != text || c.Type != "string") {
			t.Errorf("%s is the %s %v, want %v", c.Name, c.Type, table.Rows[0].Cells[i], text)
		}
		delete(want, c.Name)
	}
	if len(want) > 0 {
		t.Errorf("there are no columns %v", want)
	}
}
