"""How to test a Django project that publishes messages: each test is rolled back."""

from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import TestCase

from notifyq import within
from notifyq.contrib.django.models import Queue
from shop.models import Order
from shop.tasks import confirm


class OrderTest(TestCase):
    """Orders, and the messages that they publish."""

    def test_an_order_is_confirmed_later(self) -> None:
        answer = self.client.post("/orders/", {"customer": "ada@example.test"}).json()
        self.assertEqual(Queue.objects.get(name="mail").info["waiting"], 1)
        state = self.client.get(f"/orders/{answer['result']}/")
        self.assertEqual(state.json(), {"status": "READY"})
        self.assertIn("ada", confirm.call(answer["order"]))
        self.assertTrue(Order.objects.get().is_confirmed)

    def test_no_message_is_left_of_another_test(self) -> None:
        self.assertEqual(Queue.objects.get(name="mail").info["waiting"], 0)


class AdminTest(TestCase):
    """The pages of the admin."""

    def setUp(self) -> None:
        """Log in, and let a message fail."""
        self.client.force_login(User.objects.create_superuser("ada"))
        self.dead = within.publish(connection, "cleanup", "bob", type="forget")
        with connection.cursor() as cursor:
            cursor.execute(
                "select messages.finish(id, lock_token, 'failed', 'no such customer') "
                "from messages.claim_id(%s)",
                [self.dead],
            )

    def test_its_pages_show_what_there_is(self) -> None:
        self.assertContains(self.client.get("/admin/notifyq/queue/"), "cleanup")
        self.assertContains(self.client.get("/admin/notifyq/queue/cleanup/change/"), "cleanup")
        page = self.client.get("/admin/notifyq/deadmessage/", {"q": "cleanup"})
        self.assertContains(page, "no such customer")
        page = self.client.get(f"/admin/notifyq/deadmessage/{self.dead}/change/")
        self.assertContains(page, "no such customer")
        self.assertNotContains(page, "_save")
        self.assertEqual(self.client.get("/admin/notifyq/schedule/").status_code, 200)

    def test_only_a_user_with_the_permission_may_retry(self) -> None:
        viewer = User.objects.create_user("bob", is_staff=True)
        viewer.user_permissions.add(Permission.objects.get(codename="view_deadmessage"))
        self.client.force_login(viewer)
        action = {"action": "retry", "_selected_action": [self.dead]}
        page = self.client.post("/admin/notifyq/deadmessage/", action, follow=True)
        self.assertContains(page, "no such customer")
        self.assertEqual(Queue.objects.get(name="cleanup").info["waiting"], 0)

    def test_a_dead_message_is_published_again_once(self) -> None:
        action = {"action": "retry", "_selected_action": [self.dead]}
        page = self.client.post("/admin/notifyq/deadmessage/", action, follow=True)
        self.assertContains(page, "1 published again")
        with connection.cursor() as cursor:
            cursor.execute("select actor, action, subject from messages.audit_list()")
            self.assertEqual(cursor.fetchone(), ("ada", "dead.retry", str(self.dead)))
        self.assertEqual(Queue.objects.get(name="cleanup").info["waiting"], 1)
        page = self.client.post("/admin/notifyq/deadmessage/", action, follow=True)
        self.assertContains(page, "0 published again, 1 were retried before")
