"""The pages of the shop, and the admin."""

from django.contrib import admin
from django.urls import path

from shop import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("orders/", views.order),
    path("orders/<str:result_id>/", views.state),
]
