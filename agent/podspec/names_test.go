package podspec

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func namedPod(namespace, name, phase string, ready v1.ConditionStatus, ips ...string) NamedPod {
	p := NamedPod{
		Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": "db"}}},
		Status: &v1.PodStatus{
			Phase: v1.PodPhase(phase), Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: ready}},
		},
	}
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, v1.PodIP{IP: ip})
	}
	return p
}

func TestNames(t *testing.T) {
	subdomain := namedPod("shop", "db-2", "Running", v1.ConditionTrue, "10.0.0.7")
	subdomain.Spec.Subdomain, subdomain.Labels = "nodes", nil
	stopped := namedPod("shop", "stopped", "Running", v1.ConditionTrue, "10.0.0.10")
	stopped.Status.Reason = "Stopped"
	pods := []NamedPod{
		namedPod("blog", "www.example", "Running", v1.ConditionTrue, "10.0.0.4"),
		namedPod("shop", "db-0", "Running", v1.ConditionTrue, "10.0.0.5", "fd00::5"),
		namedPod("shop", "db-1", "Running", v1.ConditionFalse, "10.0.0.6"),
		subdomain,
		namedPod("shop", "done", "Succeeded", v1.ConditionFalse, "10.0.0.8"),
		namedPod("shop", "own", "Running", v1.ConditionTrue, "10.0.0.9"),
		stopped,
		{Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "new"}}},
	}
	pods[5].Labels = nil
	service := func(name string, spec v1.ServiceSpec) *v1.Service {
		return &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: spec}
	}
	app := map[string]string{"app": "db"}
	services := []*v1.Service{
		service("db", v1.ServiceSpec{Selector: app}), service("any", v1.ServiceSpec{Selector: app, PublishNotReadyAddresses: true}),
		service("none", v1.ServiceSpec{}), service("db-0", v1.ServiceSpec{Selector: map[string]string{"app": "else"}}),
	}
	n := NamesOf(pods, services, []string{"192.0.2.1"}, "c.test")
	got := n.In("shop", "# a comment says db-1\n10.0.0.9\town\n192.0.2.7 host.docker.internal # mine\n")
	want := `192.0.2.1	host.containers.internal
10.0.0.4	www.example.blog	www.example.blog.svc	www.example.blog.svc.c.test
10.0.0.5	any	any.shop	any.shop.svc	any.shop.svc.c.test
fd00::5	any	any.shop	any.shop.svc	any.shop.svc.c.test
10.0.0.6	any	any.shop	any.shop.svc	any.shop.svc.c.test
10.0.0.5	db	db.shop	db.shop.svc	db.shop.svc.c.test
fd00::5	db	db.shop	db.shop.svc	db.shop.svc.c.test
10.0.0.6	db-1	db-1.shop	db-1.shop.svc	db-1.shop.svc.c.test
10.0.0.7	db-2	db-2.shop	db-2.shop.svc	db-2.shop.svc.c.test
10.0.0.7	db-2.nodes	db-2.nodes.shop	db-2.nodes.shop.svc	db-2.nodes.shop.svc.c.test
10.0.0.9	own.shop	own.shop.svc	own.shop.svc.c.test
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := n.In("blog", ""); strings.Contains(got, "\tdb\t") || strings.Contains(got, "\twww.example\t") || !strings.Contains(got, "\tdb.shop\t") {
		t.Errorf("in another namespace:\n%s", got)
	}
	if !n.Equal(NamesOf(pods, services, []string{"192.0.2.1"}, "c.test")) {
		t.Error("the same names are not equal")
	}
	for what, other := range map[string]*Names{
		"a pod":     NamesOf(pods[1:], services, []string{"192.0.2.1"}, "c.test"),
		"a Service": NamesOf(pods, services[1:], []string{"192.0.2.1"}, "c.test"),
		"the node":  NamesOf(pods, services, nil, "c.test"),
	} {
		if n.Equal(other) {
			t.Errorf("names without %s are equal", what)
		}
	}
}

// Names are bounded, however many pods a Service selects.
func TestNamesAreBounded(t *testing.T) {
	var pods []NamedPod
	for range 3000 {
		pods = append(pods, namedPod("shop", strings.Repeat("a", 60), "Running", v1.ConditionTrue, "10.0.0.4"))
	}
	if got := len(NamesOf(pods, nil, nil, "").In("shop", "")); got < maxNames || got > maxNames+1000 {
		t.Errorf("%d bytes", got)
	}
}
