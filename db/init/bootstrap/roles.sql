-- Roles: six roles without login; security/grants.sql gives them their rights.
--
-- raises: nothing; without the right to create roles the owner grants by hand

do $$
declare
  v_role text;
begin
  foreach v_role in array array[
    'notifyq_owner', 'notifyq_publisher', 'notifyq_worker', 'notifyq_viewer', 'notifyq_reader',
    'notifyq_admin'
  ] loop
    begin
      if to_regrole(v_role) is null then
        execute format('create role %I nologin', v_role);
        if v_role = 'notifyq_owner' and not pg_has_role(v_role, 'usage') then
          -- The installing role must be able to install again. It gets no membership in a role that
          -- exists already: members can do everything to each schema of the server that the role
          -- owns.
          execute format('grant %I to %I', v_role, current_user);
        end if;
      end if;
    exception
      -- Roles belong to the whole server: another database may create them at this moment.
      when duplicate_object or unique_violation then null;
      when insufficient_privilege then
        raise notice 'role % was not created: that needs the attribute CREATEROLE', v_role;
    end;
  end loop;
end;
$$;
